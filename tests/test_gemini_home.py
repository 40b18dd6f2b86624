"""The CLI's private homes: what is in them, and what the child may know."""

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
    SignIn,
    available_sign_ins,
    prepare_home,
)
from gemini_cli_mcp.workspace import Workspace
from tests.support import Stub, model_answer

SEARCH = Profile("search", ("google_web_search", "web_fetch"), None)


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    workspace = Workspace(tmp_path / "config")
    yield workspace
    workspace.close()


def settings(home: Home) -> dict[str, Any]:
    return json.loads((home.path / ".gemini/settings.json").read_text())


def user(tmp_path: Path, *files: str) -> dict[str, str]:
    (tmp_path / ".gemini").mkdir()
    for name in files:
        (tmp_path / ".gemini" / name).write_text("{}")
    return {"HOME": str(tmp_path)}


def test_a_key_outranks_everything(tmp_path: Path) -> None:
    environ = user(tmp_path, ".env", "oauth_creds.json") | {
        "GEMINI_API_KEY": "k",
        "GOOGLE_GENAI_USE_VERTEXAI": "true",
    }

    assert available_sign_ins(environ) == [SignIn("gemini-api-key")]


@pytest.mark.parametrize(
    "variable", [("GOOGLE_GENAI_USE_VERTEXAI", "true"), ("GOOGLE_API_KEY", "k")]
)
def test_then_vertex(tmp_path: Path, variable: tuple[str, str]) -> None:
    environ = user(tmp_path, ".env") | dict([variable])

    assert available_sign_ins(environ) == [SignIn("vertex-ai")]


def test_then_the_users_env_file_and_then_the_login(tmp_path: Path) -> None:
    environ = user(tmp_path, ".env", "oauth_creds.json")
    folder = tmp_path / ".gemini"

    assert available_sign_ins(environ) == [
        SignIn("gemini-api-key", folder / ".env"),
        SignIn(None, folder / ".env"),
        SignIn("oauth-personal", folder / ".env", folder / "oauth_creds.json"),
    ]


def test_the_users_own_home_of_the_cli_counts(tmp_path: Path) -> None:
    environ = user(tmp_path, "oauth_creds.json")

    found = available_sign_ins({"HOME": "/nowhere", "GEMINI_CLI_HOME": environ["HOME"]})

    assert found == [SignIn("oauth-personal", None, tmp_path / ".gemini/oauth_creds.json")]


def test_without_any_the_cli_is_asked_all_the_same() -> None:
    assert available_sign_ins({"HOME": "/nowhere"}) == [SignIn(None)]


def test_sign_in_files_are_linked_and_never_copied(tmp_path: Path, workspace: Workspace) -> None:
    [*_, login] = available_sign_ins(user(tmp_path, ".env", "oauth_creds.json"))

    home = prepare_home(workspace, SEARCH, login, Limits())

    linked = home.path / ".gemini/oauth_creds.json"
    assert linked.is_symlink() and linked.readlink() == tmp_path / ".gemini/oauth_creds.json"
    assert (workspace.root() / ".gemini/.env").readlink() == tmp_path / ".gemini/.env"
    assert settings(home)["security"]["auth"]["selectedType"] == "oauth-personal"


async def test_an_env_file_without_a_key_gives_way_to_the_login(stub: Stub) -> None:
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


async def test_a_refused_key_does_not_give_way_to_an_old_login(stub: Stub) -> None:
    folder = Path(stub.environ["HOME"]) / ".gemini"
    folder.mkdir()
    (folder / ".env").write_text("GEMINI_API_KEY=old")
    (folder / "oauth_creds.json").write_text("{}")
    stub.plays_scenario("bad-key,consumer-login")

    with pytest.raises(NotSignedIn, match="its key was rejected"):
        await stub.search()


def test_a_sign_in_that_comes_later_is_taken_up(tmp_path: Path, workspace: Workspace) -> None:
    environ = user(tmp_path)
    [before] = available_sign_ins(environ)
    prepare_home(workspace, SEARCH, before, Limits())
    (tmp_path / ".gemini/.env").write_text("GEMINI_API_KEY=k")

    [after, _] = available_sign_ins(environ)
    prepare_home(workspace, SEARCH, after, Limits())

    assert (workspace.root() / ".gemini/.env").readlink() == tmp_path / ".gemini/.env"


def test_only_the_tools_of_the_profile_exist(workspace: Workspace) -> None:
    search = prepare_home(workspace, SEARCH, SignIn("gemini-api-key"), Limits())
    correction = prepare_home(
        workspace, Profile("correction", (), None), SignIn("gemini-api-key"), Limits()
    )

    assert settings(search)["tools"]["core"] == ["google_web_search", "web_fetch"]
    assert settings(correction)["tools"]["core"] == []
    assert search.path != correction.path
    assert list(search.working_folder.iterdir()) == []


def test_what_belongs_to_a_user_or_calls_home_is_off(workspace: Workspace) -> None:
    """Some of it has a second lock: where the CLI runs, and what it finds on its way up."""
    off = settings(prepare_home(workspace, SEARCH, SignIn(None), Limits()))

    assert off["advanced"] == {"ignoreLocalEnv": True}
    assert off["context"]["discoveryMaxDirs"] == 0
    assert not off["skills"]["enabled"] and not off["hooksConfig"]["enabled"]
    assert not off["experimental"]["enableAgents"] and not off["general"]["plan"]["enabled"]
    assert not off["privacy"]["usageStatisticsEnabled"]
    assert off["telemetry"]["target"] == "local"  # a file of ours, see the environment
    assert not off["general"]["enableAutoUpdate"]


def test_the_search_uses_the_main_model(workspace: Workspace) -> None:
    profile = Profile("search", SEARCH.tools, "gemini-2.5-flash")

    home = prepare_home(workspace, profile, SignIn(None), Limits())

    alias = settings(home)["modelConfigs"]["customAliases"]["web-search"]["modelConfig"]
    assert alias == {
        "model": "gemini-2.5-flash",
        "generateContentConfig": {"tools": [{"googleSearch": {}}]},
    }


@pytest.mark.parametrize(
    "model", [None, "flash", "pro", "auto", "auto-gemini-3", "gemini-3.5-flash"]
)
def test_a_name_that_the_cli_replaces_is_no_alias(workspace: Workspace, model: str | None) -> None:
    home = prepare_home(workspace, Profile("search", SEARCH.tools, model), SignIn(None), Limits())

    assert "modelConfigs" not in settings(home)


def test_foreign_secrets_stay_with_us(tmp_path: Path) -> None:
    home = Home(tmp_path, tmp_path)
    kept = {
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

    environment = home.environment(kept | secrets, tmp_path)

    assert kept.items() <= environment.items()
    assert "secret" not in environment.values()


def test_what_would_undo_the_isolation_is_set_by_us(tmp_path: Path) -> None:
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

    environment = Home(tmp_path, tmp_path).environment(hostile, tmp_path)

    assert not any("evil" in value or value == "docker" for value in environment.values())
    assert environment["NODE_OPTIONS"] == ""
    assert environment["GEMINI_MODEL"] == ""


def test_an_empty_key_does_not_hide_the_one_in_the_env_file(tmp_path: Path) -> None:
    environment = Home(tmp_path, tmp_path).environment({"GEMINI_API_KEY": ""}, tmp_path)

    assert "GEMINI_API_KEY" not in environment
