"""The CLI's private home folders: their content, and the environment of the child."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gemini_cli_mcp.errors import NotSignedIn
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.providers.gemini.home import (
    Home,
    Profile,
    inherited_variables,
    prepare_home,
)
from gemini_cli_mcp.providers.gemini.sign_ins import SignIn, available_sign_ins
from gemini_cli_mcp.workspace import Workspace
from tests.support import Stub, model_answer
from tests.support.matrix import needs_posix

SEARCH_PROFILE = Profile("search", ("google_web_search", "web_fetch"), None)


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    workspace = Workspace(tmp_path / "config")
    yield workspace
    workspace.close()


def read_settings(home: Home) -> dict[str, Any]:
    return json.loads((home.path / ".gemini/settings.json").read_text())


def create_user_home(tmp_path: Path, *files: str) -> dict[str, str]:
    (tmp_path / ".gemini").mkdir()
    for name in files:
        (tmp_path / ".gemini" / name).write_text("{}")
    return {"HOME": str(tmp_path)}


def test_an_api_key_takes_precedence(tmp_path: Path) -> None:
    environ = create_user_home(tmp_path, ".env", "oauth_creds.json") | {
        "GEMINI_API_KEY": "k",
        "GOOGLE_GENAI_USE_VERTEXAI": "true",
    }

    assert available_sign_ins(environ) == [SignIn("gemini-api-key")]


@pytest.mark.parametrize(
    "variable", [("GOOGLE_GENAI_USE_VERTEXAI", "true"), ("GOOGLE_API_KEY", "k")]
)
def test_vertex_ai_takes_precedence_over_the_users_files(
    tmp_path: Path, variable: tuple[str, str]
) -> None:
    environ = create_user_home(tmp_path, ".env") | dict([variable])

    assert available_sign_ins(environ) == [SignIn("vertex-ai")]


@needs_posix
def test_the_users_env_file_is_tried_before_the_login(tmp_path: Path) -> None:
    environ = create_user_home(tmp_path, ".env", "oauth_creds.json")
    folder = tmp_path / ".gemini"

    assert available_sign_ins(environ) == [
        SignIn("gemini-api-key", folder / ".env"),
        SignIn(None, folder / ".env"),
        SignIn("oauth-personal", folder / ".env", folder / "oauth_creds.json"),
    ]


def test_the_users_gemini_cli_home_is_respected(tmp_path: Path) -> None:
    environ = create_user_home(tmp_path, "oauth_creds.json")

    sign_ins = available_sign_ins({"HOME": "/nowhere", "GEMINI_CLI_HOME": environ["HOME"]})

    assert sign_ins == [SignIn("oauth-personal", None, tmp_path / ".gemini/oauth_creds.json")]


def test_without_any_sign_in_the_cli_is_still_tried() -> None:
    assert available_sign_ins({"HOME": "/nowhere"}) == [SignIn(None)]


@needs_posix
def test_sign_in_files_are_linked_and_never_copied(tmp_path: Path, workspace: Workspace) -> None:
    [*_, login] = available_sign_ins(create_user_home(tmp_path, ".env", "oauth_creds.json"))

    home = prepare_home(workspace, SEARCH_PROFILE, login, Limits())

    link = home.path / ".gemini/oauth_creds.json"
    assert link.is_symlink() and link.readlink() == tmp_path / ".gemini/oauth_creds.json"
    assert (workspace.root() / ".gemini/.env").readlink() == tmp_path / ".gemini/.env"
    assert read_settings(home)["security"]["auth"]["selectedType"] == "oauth-personal"


async def test_an_env_file_without_a_key_falls_back_to_the_login(stub: Stub) -> None:
    folder = Path(stub.environ["HOME"]) / ".gemini"
    folder.mkdir()
    (folder / ".env").write_text("GOOGLE_CLOUD_PROJECT=p")
    (folder / "oauth_creds.json").write_text("{}")
    no_key = {"exit_code": 41, "stderr": "Please set an Auth method"}
    stub.plays(no_key, no_key, {"text": model_answer()})

    result = await stub.search()

    assert result["success"]
    assert len(stub.runs) == 3
    assert stub.waits == []


async def test_a_rejected_key_does_not_fall_back_to_the_login(stub: Stub) -> None:
    folder = Path(stub.environ["HOME"]) / ".gemini"
    folder.mkdir()
    (folder / ".env").write_text("GEMINI_API_KEY=old")
    (folder / "oauth_creds.json").write_text("{}")
    stub.plays_scenario("bad-key,consumer-login")

    with pytest.raises(NotSignedIn, match=r"Google refused the API key \(400\): API key not valid"):
        await stub.search()


@needs_posix
def test_a_sign_in_added_later_is_used(tmp_path: Path, workspace: Workspace) -> None:
    environ = create_user_home(tmp_path)
    [old_sign_in] = available_sign_ins(environ)
    prepare_home(workspace, SEARCH_PROFILE, old_sign_in, Limits())
    (tmp_path / ".gemini/.env").write_text("GEMINI_API_KEY=k")

    [new_sign_in, _] = available_sign_ins(environ)
    prepare_home(workspace, SEARCH_PROFILE, new_sign_in, Limits())

    assert (workspace.root() / ".gemini/.env").readlink() == tmp_path / ".gemini/.env"


def test_only_the_tools_of_the_profile_are_enabled(workspace: Workspace) -> None:
    search = prepare_home(workspace, SEARCH_PROFILE, SignIn("gemini-api-key"), Limits())
    correction = prepare_home(
        workspace, Profile("correction", (), None), SignIn("gemini-api-key"), Limits()
    )

    assert read_settings(search)["tools"]["core"] == ["google_web_search", "web_fetch"]
    assert read_settings(correction)["tools"]["core"] == []
    assert search.path != correction.path
    assert list(search.working_folder.iterdir()) == []


def test_user_customizations_and_remote_reporting_are_disabled(workspace: Workspace) -> None:
    """Some of these have a second safeguard: the CLI's working folder and its parents."""
    settings = read_settings(prepare_home(workspace, SEARCH_PROFILE, SignIn(None), Limits()))

    assert settings["advanced"] == {"ignoreLocalEnv": True}
    assert settings["context"]["discoveryMaxDirs"] == 0
    assert not settings["skills"]["enabled"] and not settings["hooksConfig"]["enabled"]
    assert (
        not settings["experimental"]["enableAgents"] and not settings["general"]["plan"]["enabled"]
    )
    assert not settings["privacy"]["usageStatisticsEnabled"]
    assert settings["telemetry"]["target"] == "local"  # our own file, see the environment
    assert not settings["general"]["enableAutoUpdate"]
    assert not settings["general"]["sessionRetention"]["enabled"]


def test_the_search_uses_the_main_model(workspace: Workspace) -> None:
    profile = Profile("search", SEARCH_PROFILE.tools, "gemini-2.5-flash")

    home = prepare_home(workspace, profile, SignIn(None), Limits())

    alias = read_settings(home)["modelConfigs"]["customAliases"]["web-search"]["modelConfig"]
    assert alias == {
        "model": "gemini-2.5-flash",
        "generateContentConfig": {"tools": [{"googleSearch": {}}]},
    }


@pytest.mark.parametrize(
    "model", [None, "flash", "pro", "auto", "auto-gemini-3", "gemini-3.5-flash"]
)
def test_a_model_name_that_the_cli_replaces_gets_no_alias(
    workspace: Workspace, model: str | None
) -> None:
    home = prepare_home(
        workspace, Profile("search", SEARCH_PROFILE.tools, model), SignIn(None), Limits()
    )

    assert "modelConfigs" not in read_settings(home)


def test_unrelated_secrets_are_not_passed_to_the_cli(tmp_path: Path) -> None:
    home = Home(tmp_path, tmp_path)
    allowed = {
        "PATH": "/bin",
        "HTTPS_PROXY": "http://proxy",
        "NODE_EXTRA_CA_CERTS": "/ca.pem",
        "GEMINI_API_KEY": "k",
        "GOOGLE_API_KEY": "k",
        "GOOGLE_APPLICATION_CREDENTIALS": "/adc.json",
        "GOOGLE_GEMINI_BASE_URL": "http://127.0.0.1",
        "STUB_GEMINI_DIR": "/x",
    }
    names = """
        OPENAI_API_KEY GITHUB_TOKEN GEMINI_MCP_HTTP_TOKENS AWS_SECRET_ACCESS_KEY client_secret
        PGPASSWORD DB_PASSWORD_FILE AWS_CREDENTIALS_PATH ZAI_API_KEY MYSQL_PWD GITHUB_PAT EDITOR
        GOOGLE_CLIENT_SECRET GEMINI_OTHER_TOKEN MISE_GITHUB_TOKEN NVM_AUTH_HEADER
    """
    secrets = dict.fromkeys(names.split(), "secret")

    environment = home.environment(inherited_variables(allowed | secrets), tmp_path)

    assert allowed.items() <= environment.items()
    assert "secret" not in environment.values()


def test_variables_that_would_undo_the_isolation_are_overridden(tmp_path: Path) -> None:
    hostile = {
        "NODE_OPTIONS": "--require /evil.js",
        "GEMINI_SANDBOX": "docker",
        "GEMINI_CLI_SYSTEM_SETTINGS_PATH": "/evil.json",
        "GEMINI_SYSTEM_MD": "/evil.md",
        "GEMINI_CLI_HOME": "/evil",
        "GEMINI_MODEL": "evil",
        "GEMINI_TELEMETRY_OTLP_ENDPOINT": "http://evil",
        "GEMINI_TELEMETRY_TARGET": "evil",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://evil",
        "GEMINI_TELEMETRY_OUTFILE": "/evil",
    }

    environment = Home(tmp_path, tmp_path).environment(inherited_variables(hostile), tmp_path)

    assert not any("evil" in value or value == "docker" for value in environment.values())
    assert environment["NODE_OPTIONS"] == ""
    assert environment["GEMINI_MODEL"] == ""


def test_an_empty_key_does_not_hide_the_one_in_the_env_file(tmp_path: Path) -> None:
    environment = Home(tmp_path, tmp_path).environment(
        inherited_variables({"GEMINI_API_KEY": ""}), tmp_path
    )

    assert "GEMINI_API_KEY" not in environment
