"""`doctor` on broken setups: it names the cause, and the fix it suggests works."""

import errno
import json
import os
import pty
import shlex
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import httpx2
import pytest
from pytest_mock import MockerFixture

from gemini_cli_mcp.cli.doctor import models_request
from gemini_cli_mcp.cli.doctor.command import _wrap
from gemini_cli_mcp.cli.doctor.environment_checks import check_config_dir
from gemini_cli_mcp.cli.doctor.findings import LIVE_SEARCH, can_search, ok, problem
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.platforms import shell_commands
from gemini_cli_mcp.workspace import LOCK_CONTENT, LOCK_FILE
from tests.support import REAL_CLI, STUB, Result, Stub, command, fake_gemini
from tests.support.binaries import install_official_cli, make_executable
from tests.support.cli import run_command
from tests.support.fake_api import FakeApi
from tests.support.matrix import needs_real_cli

Change = Callable[[Stub], None]


def doctor(stub: Stub, *arguments: str) -> tuple[int, list[Result]]:
    completed = run_command(stub, "doctor", "--json", *arguments)
    assert completed.stderr == ""
    report = json.loads(completed.stdout)
    assert report["ok"] is (completed.returncode == 0)
    return completed.returncode, report["findings"]


def only(findings: list[Result], topic: str) -> Result:
    """Return the only finding about this topic."""
    [finding] = [finding for finding in findings if finding["topic"] == topic]
    return finding


def set_variables(**variables: str) -> Change:
    return lambda stub: stub.environ.update(variables)


def unset_variables(*names: str) -> Change:
    def change(stub: Stub) -> None:
        for name in names:
            stub.environ.pop(name, None)

    return change


def write_file(name: str, text: str, mode: int = 0o600) -> Change:
    def change(stub: Stub) -> None:
        path = stub.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)

    return change


def install_outdated_cli(stub: Stub) -> None:
    stub.environ["GEMINI_MCP_CLI_PATH"] = str(install_official_cli(stub.home / "old", "0.38.0"))


def engines_config(key_variable: str) -> str:
    engine = {"id": "glm", "providerKey": "glm.work.glm-4.6", "description": "GLM"}
    routing = {"web_search": [{"id": "r", "priority": 1, "targets": ["glm.work.glm-4.6"]}]}
    return json.dumps(
        {
            "webSearch": {"engines": [engine]},
            "virtualrouter": {"routing": routing},
            "accounts": {"work": {"apiKeyEnv": key_variable}},
        }
    )


def set_to_home_path(variable: str, name: str) -> Change:
    return lambda stub: stub.environ.update({variable: str(stub.home / name)})


def apply_all(*changes: Change) -> Change:
    def change(stub: Stub) -> None:
        for apply in changes:
            apply(stub)

    return change


def install_outdated_node(stub: Stub) -> None:
    install_official_cli(stub.home / "new", "0.61.0")
    write_file("nodes/node", "#!/bin/sh\necho v18.1.0\n", 0o755)(stub)
    stub.environ |= {
        "GEMINI_MCP_CLI_PATH": str(stub.home / "new/bin/gemini"),
        "PATH": f"{stub.home}/nodes:/usr/bin:/bin",
    }


def hide_node(stub: Stub) -> None:
    install_official_cli(stub.home / "new", "0.61.0")
    stub.environ |= {
        "GEMINI_MCP_CLI_PATH": str(stub.home / "new/bin/gemini"),
        "PATH": str(stub.home),
        "NVM_DIR": "/nowhere",
    }


def install_fake_official_cli(stub: Stub) -> None:
    """Install a program that behaves like the official CLI."""
    write_file("nodes/node", "#!/bin/sh\necho v22.1.0\n", 0o755)(stub)
    stub.environ |= {
        "GEMINI_MCP_CLI_PATH": str(fake_gemini.install(stub.home)),
        "PATH": f"{stub.home}/nodes:{stub.environ['PATH']}",
    }


def restore_base_url(stub: Stub) -> None:
    """Connect to the fake API again, as a network that works again would."""
    stub.environ.pop("HTTPS_PROXY", None)
    stub.environ["GOOGLE_GEMINI_BASE_URL"] = stub.environ["STUB_API_URL"]


def install_crashing_cli(stub: Stub) -> None:
    """Install an official CLI that always fails."""
    path = install_official_cli(stub.home / "new", "0.61.0")
    path.resolve().write_text("#!/bin/sh\necho 'Error: cannot find module' >&2\nexit 1\n")
    stub.environ["GEMINI_MCP_CLI_PATH"] = str(path)


@dataclass(frozen=True)
class BrokenSetup:
    """A setup that does not work, the finding expected for it, and how it is repaired."""

    damage: Change
    topic: str
    message_part: str
    fix_part: str
    repair: Change | None = None
    """What a person does if the fix is not a command; otherwise the fix itself is run."""
    status: str = "problem"


USE_WORKING_CLI = unset_variables("GEMINI_MCP_CLI_PATH")
SETUPS: dict[str, BrokenSetup] = {
    "no CLI": BrokenSetup(
        set_variables(GEMINI_MCP_CLI_PATH="no-such-gemini"),
        "gemini CLI",
        "neither on PATH",
        "npm install -g @google/gemini-cli",
    ),
    "nonexistent path": BrokenSetup(
        set_variables(GEMINI_MCP_CLI_PATH="/nowhere/gemini"),
        "gemini CLI",
        "/nowhere/gemini",
        "unset GEMINI_MCP_CLI_PATH",
    ),
    "not executable": BrokenSetup(
        apply_all(
            write_file("gemini", STUB.read_text()),
            set_to_home_path("GEMINI_MCP_CLI_PATH", "gemini"),
        ),
        "gemini CLI",
        "not executable",
        "chmod +x",
    ),
    "outdated CLI": BrokenSetup(install_outdated_cli, "gemini CLI", "too old", "@latest"),
    "no Node": BrokenSetup(
        hide_node, "Node", "no `node`", shell_commands.install_node(), USE_WORKING_CLI
    ),
    "outdated Node": BrokenSetup(
        install_outdated_node, "Node", "v18.1.0", "export PATH=", USE_WORKING_CLI
    ),
    "crashing CLI": BrokenSetup(
        install_crashing_cli, "dry run", "a search on loopback failed", "@latest", USE_WORKING_CLI
    ),
    "no sign-in": BrokenSetup(
        apply_all(install_fake_official_cli, unset_variables("GEMINI_API_KEY")),
        "sign-in",
        "no sign-in was found",
        "export GEMINI_API_KEY",
    ),
    "only a personal login": BrokenSetup(
        apply_all(
            install_fake_official_cli,
            unset_variables("GEMINI_API_KEY"),
            write_file(".gemini/oauth_creds.json", "{}"),
        ),
        "sign-in",
        "June 2026",
        "~/.gemini/.env",
    ),
    ".env with only a comment": BrokenSetup(
        apply_all(
            install_fake_official_cli,
            unset_variables("GEMINI_API_KEY"),
            write_file(".gemini/.env", "# GEMINI_API_KEY=\n"),
        ),
        "sign-in",
        "gemini found no sign-in that it can use",
        "export GEMINI_API_KEY",
    ),
    ".env with an empty key": BrokenSetup(
        apply_all(
            install_fake_official_cli,
            unset_variables("GEMINI_API_KEY"),
            write_file(".gemini/.env", "GEMINI_API_KEY=\n"),
        ),
        "sign-in",
        ".gemini/.env: gemini found no sign-in",
        "export GEMINI_API_KEY",
    ),
    "dead proxy": BrokenSetup(
        apply_all(
            install_fake_official_cli,
            unset_variables("GOOGLE_GEMINI_BASE_URL"),
            set_variables(HTTPS_PROXY="http://me:secret-word@127.0.0.1:9"),
        ),
        "sign-in",
        "no connection to generativelanguage.googleapis.com via the proxy",
        "unset HTTPS_PROXY",
        restore_base_url,
    ),
    "unusable proxy": BrokenSetup(
        apply_all(install_fake_official_cli, set_variables(https_proxy="me:secret-word@host:1")),
        "proxy",
        "https_proxy is not a proxy that gemini can use",
        "unset https_proxy",
    ),
    "no network": BrokenSetup(
        apply_all(
            install_fake_official_cli,
            set_variables(GOOGLE_GEMINI_BASE_URL="http://me:secret-word@127.0.0.1:9"),
        ),
        "sign-in",
        "no connection to http://127.0.0.1:9 (GOOGLE_GEMINI_BASE_URL)",
        "curl -I http://127.0.0.1:9",
        restore_base_url,
    ),
    "no network, and a key in .env": BrokenSetup(
        apply_all(
            install_fake_official_cli,
            unset_variables("GEMINI_API_KEY"),
            write_file(".gemini/.env", "GEMINI_API_KEY=abcdefgh\n"),
            set_variables(GOOGLE_GEMINI_BASE_URL="http://127.0.0.1:9"),
        ),
        "sign-in",
        "no connection to http://127.0.0.1:9 (GOOGLE_GEMINI_BASE_URL)",
        "curl -I http://127.0.0.1:9",
        restore_base_url,
    ),
    "no network, and a login": BrokenSetup(
        apply_all(
            install_fake_official_cli,
            unset_variables("GEMINI_API_KEY"),
            write_file(".gemini/oauth_creds.json", "{}"),
            set_variables(GOOGLE_GEMINI_BASE_URL="http://127.0.0.1:9"),
        ),
        "sign-in",
        "no connection to http://127.0.0.1:9 (GOOGLE_GEMINI_BASE_URL)",
        "curl -I http://127.0.0.1:9",
        apply_all(restore_base_url, set_variables(GEMINI_API_KEY="a-secret-key")),
    ),
    "key with a space": BrokenSetup(
        set_variables(GEMINI_API_KEY="a secret-word"),
        "sign-in",
        "another character that no key has",
        "export GEMINI_API_KEY=",
    ),
    "misspelt variable": BrokenSetup(
        set_variables(GEMINI_MCP_TIMEOT="10"),
        "variables",
        "GEMINI_MCP_TIMEOT: unknown variable; did you mean GEMINI_MCP_TIMEOUT?",
        "unset GEMINI_MCP_TIMEOT",
        status="note",
    ),
    "personal login outranks the key": BrokenSetup(
        write_file(
            ".gemini/settings.json", '{"security": {"auth": {"selectedType": "oauth-personal"}}}'
        ),
        "sign-in",
        "outranks the key",
        '"selectedType": "gemini-api-key"',
        write_file(
            ".gemini/settings.json", '{"security": {"auth": {"selectedType": "gemini-api-key"}}}'
        ),
        status="note",
    ),
    "invalid variable": BrokenSetup(
        set_variables(GEMINI_MCP_TIMEOUT="soon"),
        "configuration",
        "GEMINI_MCP_TIMEOUT='soon'",
        "unset GEMINI_MCP_TIMEOUT",
    ),
    "broken engines file": BrokenSetup(
        apply_all(
            write_file("engines.json", "{"),
            set_to_home_path("GEMINI_MCP_WEB_SEARCH", "engines.json"),
        ),
        "configuration",
        "engines.json",
        "unset GEMINI_MCP_WEB_SEARCH",
    ),
    "engine without a key": BrokenSetup(
        apply_all(
            write_file("engines.json", engines_config("GLM_WORK")),
            set_to_home_path("GEMINI_MCP_WEB_SEARCH", "engines.json"),
        ),
        "engines",
        "GLM_WORK is not set",
        "export GLM_WORK=",
        status="note",
    ),
    "folder cannot be created": BrokenSetup(
        set_variables(GEMINI_MCP_CONFIG_DIR="/proc/none"),
        "folder",
        "/proc/none",
        "export GEMINI_MCP_CONFIG_DIR=",
        lambda stub: stub.environ.update(GEMINI_MCP_CONFIG_DIR=str(stub.config_dir)),
    ),
    "Vertex AI without a project": BrokenSetup(
        apply_all(
            unset_variables("GEMINI_API_KEY"), set_variables(GOOGLE_GENAI_USE_VERTEXAI="true")
        ),
        "sign-in",
        "GOOGLE_CLOUD_PROJECT and GOOGLE_CLOUD_LOCATION",
        "export GOOGLE_CLOUD_PROJECT=",
    ),
    "placeholder key": BrokenSetup(
        set_variables(GEMINI_API_KEY="..."), "sign-in", "a placeholder", "export GEMINI_API_KEY="
    ),
    "wrapper cannot be run": BrokenSetup(
        apply_all(
            write_file("gemini", "#!/no/such/program\n", 0o755),
            set_to_home_path("GEMINI_MCP_CLI_PATH", "gemini"),
        ),
        "gemini CLI",
        "cannot be run",
        "npm install -g @google/gemini-cli",
        USE_WORKING_CLI,
    ),
    "folder is a file": BrokenSetup(
        apply_all(write_file("file", ""), set_to_home_path("GEMINI_MCP_CONFIG_DIR", "file")),
        "configuration",
        "GEMINI_MCP_CONFIG_DIR",
        "unset GEMINI_MCP_CONFIG_DIR",
    ),
    "placeholder key for the API": BrokenSetup(
        set_variables(GEMINI_MCP_PROVIDERS="api", GEMINI_API_KEY="..."),
        "provider api",
        "a placeholder",
        "export GEMINI_API_KEY=",
    ),
    "invalid base URL for the API": BrokenSetup(
        set_variables(GEMINI_MCP_PROVIDERS="api", GOOGLE_GEMINI_BASE_URL="http://[x"),
        "provider api",
        "no connection to http://[x (GOOGLE_GEMINI_BASE_URL)",
        "curl -I 'http://[x'",
        restore_base_url,
    ),
    "antigravity without agy": BrokenSetup(
        set_variables(GEMINI_MCP_PROVIDERS="antigravity"),
        "provider antigravity",
        "`agy` was not found",
        "remove `antigravity` from GEMINI_MCP_PROVIDERS",
        unset_variables("GEMINI_MCP_PROVIDERS"),
    ),
    "api without a key": BrokenSetup(
        apply_all(unset_variables("GEMINI_API_KEY"), set_variables(GEMINI_MCP_PROVIDERS="api")),
        "provider api",
        "no API key is set",
        "export GEMINI_API_KEY",
    ),
}


def run_fix(stub: Stub, fix: str) -> None:
    """Run the fix in a shell, with a value in place of `...`."""
    bin_folder = stub.home / "npm-command"
    bin_folder.mkdir()
    (bin_folder / "npm").write_text(
        f"#!/bin/sh\nmkdir -p {stub.home}/.local/bin\nln -sf {STUB} {stub.home}/.local/bin/gemini\n"
    )
    (bin_folder / "npm").chmod(0o755)
    script = f"{fix.replace('...', 'a-value-of-mine')}\nenv -0"
    environ = {**stub.environ, "PATH": f"{bin_folder}{os.pathsep}{stub.environ['PATH']}"}
    completed = subprocess.run(
        ["bash", "-euc", script], env=environ, capture_output=True, text=True, check=True
    )
    new_environ = dict(line.split("=", 1) for line in completed.stdout.split("\0") if "=" in line)
    path = stub.environ["PATH"]
    stub.environ.clear()
    stub.environ.update(new_environ, PATH=path)


@pytest.fixture
def user(stub: Stub, api: FakeApi) -> Stub:
    """A user with everything that a search needs; the CLI is the stub."""
    stub.environ |= {
        "GOOGLE_GEMINI_BASE_URL": api.url,
        "STUB_API_URL": api.url,
    }
    (stub.home / ".local/bin").mkdir(parents=True)
    (stub.home / ".local/bin/gemini").symlink_to(stub.environ.pop("GEMINI_MCP_CLI_PATH"))
    stub.environ["GEMINI_API_KEY"] = "a-secret-key"
    return stub


@pytest.mark.parametrize("setup", SETUPS.values(), ids=SETUPS.keys())
def test_the_cause_is_named_and_the_fix_works(user: Stub, setup: BrokenSetup) -> None:
    path = user.environ["PATH"]
    setup.damage(user)

    code, findings = doctor(user)
    [finding] = [f for f in findings if (f["status"], f["topic"]) == (setup.status, setup.topic)]
    if setup.repair:
        setup.repair(user)
        user.environ["PATH"] = path
    else:
        run_fix(user, finding["fix"])
    fixed_code, fixed_findings = doctor(user)

    assert setup.message_part in finding["message"]
    assert setup.fix_part in finding["fix"]
    assert code == (1 if setup.status == "problem" else 0)
    assert fixed_code == 0
    assert not [
        f for f in fixed_findings if f["status"] == "problem" or setup.message_part in f["message"]
    ]
    assert "a-secret-key" not in json.dumps(findings)
    assert "secret-word" not in json.dumps(findings)


def install_foreign_node(stub: Stub) -> None:
    """Install an official CLI and a Node for another platform."""
    path = install_official_cli(stub.home / "new", "0.61.0")
    write_file("nodes/node", "\x7fELF", 0o755)(stub)
    stub.environ["GEMINI_MCP_CLI_PATH"] = str(path)
    stub.environ["PATH"] = f"{stub.home}/nodes:{stub.environ['PATH']}"


def set_unreachable_proxies(stub: Stub) -> None:
    """Use a CLI that honours proxies, as the real one does; loopback requests must bypass them."""
    install_fake_official_cli(stub)
    stub.environ |= {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}


ExpectedFinding = tuple[str, str, str]
"""Status, topic and part of the message."""
UNUSUAL_SETUPS: dict[str, tuple[Change, ExpectedFinding]] = {
    "home is a file": (
        apply_all(write_file("file", ""), set_to_home_path("HOME", "file")),
        ("problem", "gemini CLI", "neither on PATH"),
    ),
    "no home": (
        apply_all(unset_variables("HOME"), set_variables(GEMINI_MCP_CLI_PATH="no-such-gemini")),
        ("problem", "gemini CLI", "neither on PATH"),
    ),
    "login folder is a file": (
        apply_all(
            install_fake_official_cli,
            unset_variables("GEMINI_API_KEY"),
            write_file(".gemini", ""),
        ),
        ("problem", "sign-in", "no sign-in was found"),
    ),
    "Node for another platform": (install_foreign_node, ("problem", "Node", "nodes/node")),
    "unreachable proxies": (
        set_unreachable_proxies,
        ("ok", "isolation", "none of your configuration"),
    ),
    "non-ASCII folder": (set_to_home_path("GEMINI_MCP_CONFIG_DIR", "é"), ("ok", "folder", "é")),
}


@pytest.mark.parametrize("name", UNUSUAL_SETUPS)
def test_an_unusual_machine_still_gets_all_findings(user: Stub, name: str) -> None:
    user.environ["GEMINI_MCP_CONFIG_DIR"] = str(user.config_dir)
    change, (status, topic, part) = UNUSUAL_SETUPS[name]
    change(user)

    _, findings = doctor(user)

    by_topic = {finding["topic"]: finding for finding in findings}
    assert by_topic[topic]["status"] == status and part in by_topic[topic]["message"]
    # One unusual thing does not prevent the other checks.
    assert {"configuration", "folder", "gemini CLI", "sign-in", "engines", "network"} <= set(
        by_topic
    )


def test_a_cli_that_loads_the_users_setup_is_a_problem(user: Stub) -> None:
    install_fake_official_cli(user)
    program = Path(user.environ["GEMINI_MCP_CLI_PATH"])
    original, leaking = (
        '{"text": prompt}',
        '{"text": (Path.home() / ".gemini/GEMINI.md").read_text()}',
    )
    program.write_text(program.read_text().replace(original, leaking))

    code, findings = doctor(user)

    by_topic = {finding["topic"]: finding for finding in findings}
    assert (code, by_topic["isolation"]["status"]) == (1, "problem")
    assert "leaked into the run" in by_topic["isolation"]["message"]


def test_findings_are_printed_on_an_ascii_terminal(user: Stub) -> None:
    user.environ |= {
        "PYTHONIOENCODING": "ascii",
        "GEMINI_MCP_CONFIG_DIR": str(user.home / "é"),
    }

    completed = subprocess.run(command("doctor"), env=user.environ, capture_output=True, text=True)

    assert (completed.returncode, completed.stderr) == (0, "")
    assert "\\xe9," in completed.stdout


@needs_real_cli
def test_a_gemini_outside_path_is_found(user: Stub) -> None:
    folder = user.home / ".npm-global/bin"
    folder.mkdir(parents=True)
    (folder / "gemini").symlink_to(REAL_CLI.resolve())

    code, findings = doctor(user)

    assert code == 0
    assert str(folder) in next(f["message"] for f in findings if f["topic"] == "gemini CLI")


def test_processes_and_folders_of_stale_servers_are_reported(user: Stub) -> None:
    server_folder = user.config_dir / "servers" / "0123456789abcdef"
    server_folder.mkdir(parents=True)
    (server_folder / LOCK_FILE).write_bytes(LOCK_CONTENT)
    user.config_dir.chmod(0o700)
    environ = {**user.environ, "GEMINI_CLI_HOME": f"{server_folder}/search/home"}
    with subprocess.Popen(["sleep", "60"], env=environ) as orphan:
        _, findings = doctor(user)
        orphan.kill()

    stale = [finding for finding in findings if finding["topic"] == "stale servers"]
    assert stale[0]["fix"] == f"kill {orphan.pid}"
    assert "1 folder of" in stale[1]["message"]


def test_a_folder_readable_by_others_is_reported_and_not_changed(user: Stub) -> None:
    user.config_dir.mkdir(mode=0o755)

    code, findings = doctor(user)

    [note] = [finding for finding in findings if finding["status"] == "note" and "fix" in finding]
    assert (code, note["topic"], note["fix"]) == (0, "folder", f"chmod 700 {user.config_dir}")
    assert user.config_dir.stat().st_mode & 0o777 == 0o755


@needs_real_cli
def test_a_healthy_setup_passes_the_dry_run(user: Stub) -> None:
    (user.home / ".local/bin/gemini").unlink()
    user.environ["PATH"] = f"{REAL_CLI.parent}{os.pathsep}{user.environ['PATH']}"
    user.environ["GEMINI_MCP_QUEUE"] = "0"

    code, findings = doctor(user)

    by_topic = {finding["topic"]: finding for finding in findings}
    assert code == 0
    assert "none of your configuration" in by_topic["isolation"]["message"]
    assert by_topic["ready process"]["status"] == "ok"
    assert "supported (ACP)" in by_topic["shared process"]["message"]
    assert "0.61.0" in by_topic["gemini CLI"]["message"]
    assert by_topic["desktop apps"]["status"] == "note"  # npm's folder is not on their short PATH
    assert "install claude-desktop" in by_topic["desktop apps"]["fix"]


def test_one_working_provider_is_enough(user: Stub) -> None:
    user.environ["GEMINI_MCP_PROVIDERS"] = "gemini,antigravity"

    code, findings = doctor(user)

    assert [f["topic"] for f in findings if f["status"] == "problem"] == ["provider antigravity"]
    assert code == 0


def test_live_runs_a_search_and_reports_its_outcome(user: Stub) -> None:
    code, findings = doctor(user, "--live")
    user.environ["STUB_GEMINI_SCENARIO"] = "daily-quota"
    failed_code, failed_findings = doctor(user, "--live")

    assert (code, findings[-1]["topic"], findings[-1]["status"]) == (0, "live search", "ok")
    assert failed_code == 1
    assert "QUOTA_EXHAUSTED" in failed_findings[-1]["message"]


def test_without_json_the_findings_are_readable_lines(user: Stub) -> None:
    install_fake_official_cli(user)
    del user.environ["GEMINI_API_KEY"]
    completed = run_command(user, "doctor")

    prose = [line for line in completed.stdout.splitlines() if "/" not in line]
    assert max(map(len, prose)) <= 80
    assert completed.returncode == 1
    assert "problem sign-in: no sign-in was found." in completed.stdout
    assert "\n        fix: export GEMINI_API_KEY=..." in completed.stdout
    assert completed.stdout.endswith("A search cannot work yet: fix the problems above.\n")


INVALID_KEY = "API key not valid. Please pass a valid API key."
REJECTIONS = [
    (400, INVALID_KEY, "refused"),
    (403, "Generative Language API has not been used in project 1.", "denied"),
    (503, "The service is overloaded.", "is failing (503)"),
]


def api_error(status: int, message: str) -> tuple[int, Result]:
    state = {400: "API_KEY_INVALID", 403: "PERMISSION_DENIED"}.get(status, "UNAVAILABLE")
    return status, {"error": {"code": status, "message": message, "status": state}}


@pytest.mark.parametrize(("status", "message", "verdict"), REJECTIONS)
def test_a_rejected_key_is_reported_in_the_words_of_the_api(
    user: Stub, api: FakeApi, status: int, message: str, verdict: str
) -> None:
    install_fake_official_cli(user)
    api.failure = api_error(status, message)

    code, findings = doctor(user)

    finding = only(findings, "sign-in")
    assert (code, finding["status"]) == (1, "problem")
    assert verdict in finding["message"] and message in finding["message"]
    assert api.url in finding["message"]


@pytest.mark.parametrize(("status", "message", "verdict"), REJECTIONS[:2])
def test_a_rejected_key_in_a_file_is_found_by_a_run_of_the_cli(
    user: Stub, api: FakeApi, status: int, message: str, verdict: str
) -> None:
    install_fake_official_cli(user)
    del user.environ["GEMINI_API_KEY"]
    write_file(".gemini/.env", "GEMINI_API_KEY=abcdefgh\n")(user)
    api.failure = api_error(status, message)

    code, findings = doctor(user)

    finding = only(findings, "sign-in")
    assert (code, finding["status"]) == (1, "problem")
    assert verdict in finding["message"] and message in finding["message"]


@needs_real_cli
def test_an_env_file_without_a_key_is_found_by_the_real_cli(user: Stub) -> None:
    user.environ["GEMINI_MCP_CLI_PATH"] = str(REAL_CLI)
    del user.environ["GEMINI_API_KEY"]
    write_file(".gemini/.env", "# GEMINI_API_KEY=\n")(user)

    code, findings = doctor(user)

    finding = only(findings, "sign-in")
    assert (code, finding["status"]) == (1, "problem")
    assert "gemini found no sign-in" in finding["message"]


def test_a_server_without_a_list_of_models_is_tried_with_a_run(user: Stub, api: FakeApi) -> None:
    install_fake_official_cli(user)
    api.models_status = 404

    code, findings = doctor(user)

    finding = only(findings, "sign-in")
    assert (code, finding["status"]) == (0, "ok")
    assert "gemini answered a short prompt" in finding["message"]


def test_a_trial_without_an_answer_ends_in_time(user: Stub, api: FakeApi) -> None:
    install_fake_official_cli(user)
    api.delay = 30
    user.limits = Limits(sign_in_timeout=0.2)
    user.environ["GEMINI_MCP_PROVIDERS"] = "gemini,api"

    code, findings = doctor(user)
    requests = api.model_lists
    write_file(".gemini/.env", f"GEMINI_API_KEY={user.environ.pop('GEMINI_API_KEY')}\n")(user)
    run_code, run_findings = doctor(user)

    by_topic = {finding["topic"]: finding for finding in findings}
    finding = only(run_findings, "sign-in")
    assert (code, run_code) == (1, 1)
    assert "no answer within 0.2 s" in by_topic["sign-in"]["message"]
    assert "no answer within 0.2 s" in by_topic["provider api"]["message"]
    assert requests == 1  # both providers use the same key
    assert "gemini gave no answer within 0.16 s" in finding["message"]


@pytest.mark.parametrize(("hours", "direction"), [(-24, "ahead"), (24, "behind")])
@pytest.mark.parametrize("key_in_file", [False, True])
def test_a_wrong_clock_is_reported(
    user: Stub, api: FakeApi, hours: int, direction: str, key_in_file: bool
) -> None:
    install_fake_official_cli(user)
    api.clock_error = hours * 3600
    user.environ["GEMINI_MCP_PROVIDERS"] = "gemini,api"
    if key_in_file:
        write_file(".gemini/.env", f"GEMINI_API_KEY={user.environ.pop('GEMINI_API_KEY')}\n")(user)

    code, findings = doctor(user)

    finding = only(findings, "clock")
    assert (code, finding["status"]) == (0, "note")
    assert f"24 hours {direction}" in finding["message"]
    assert finding["fix"] == shell_commands.set_clock()


@pytest.mark.parametrize("date", ["Mon, 16 Nov 2026 10:00:00", "Mon, 16 Nov 2026 10:00:00 -0000"])
def test_a_time_without_a_zone_is_utc(date: str) -> None:
    with_zone = httpx2.Response(200, headers={"Date": "Mon, 16 Nov 2026 10:00:00 GMT"})
    response = httpx2.Response(200, headers={"Date": date})

    difference = models_request._clock_error(response) - models_request._clock_error(with_zone)
    assert abs(difference) < timedelta(minutes=5)


def test_each_provider_is_tried_along_its_own_route(user: Stub, api: FakeApi) -> None:
    """Only the CLI ignores ALL_PROXY."""
    install_fake_official_cli(user)
    user.environ |= {"GEMINI_MCP_PROVIDERS": "gemini,api", "ALL_PROXY": "http://127.0.0.1:9"}

    code, findings = doctor(user)

    by_topic = {finding["topic"]: finding for finding in findings}
    assert (code, by_topic["sign-in"]["status"]) == (0, "ok")
    assert by_topic["provider api"]["status"] == "problem"
    assert "via the proxy http://127.0.0.1:9 (ALL_PROXY)" in by_topic["provider api"]["message"]


def test_an_answer_without_models_is_not_a_proof(user: Stub, api: FakeApi) -> None:
    """The login page of a network answers everything with 200."""
    install_fake_official_cli(user)
    api.failure = (200, {"please": "log in"})

    code, findings = doctor(user)

    finding = only(findings, "sign-in")
    assert (code, finding["status"]) == (1, "problem")
    assert "returned no list of models (status 200)" in finding["message"]


def test_a_rate_limit_is_not_a_proof(user: Stub, api: FakeApi) -> None:
    install_fake_official_cli(user)
    api.failure = api_error(429, "Slow down.")

    code, findings = doctor(user)

    finding = only(findings, "sign-in")
    assert (code, finding["status"], finding["proven"]) == (0, "note", False)
    assert "limits requests: Slow down." in finding["message"]


RUNS = {
    "unknown-model": ("ok", True, "Google accepted it"),
    "rate-limit": ("note", False, "rate limit"),
    "bad-settings": ("problem", True, "gemini rejected its settings."),
    "bad-key": ("problem", True, "Google refused the API key (400)"),
}


@pytest.mark.parametrize("scenario", RUNS)
def test_a_failed_run_proves_only_what_it_says(user: Stub, scenario: str) -> None:
    user.environ["STUB_GEMINI_SCENARIO"] = scenario

    code, findings = doctor(user)

    status, proven, message = RUNS[scenario]
    finding = only(findings, "sign-in")
    assert (code, finding["status"], finding["proven"]) == (status == "problem", status, proven)
    assert message in finding["message"]


def test_a_successful_search_is_the_best_proof() -> None:
    failed = replace(problem("sign-in", "no connection", "fix"), provider="gemini")

    assert not can_search([failed])
    assert can_search([failed, ok(LIVE_SEARCH, "2 sources")])
    assert not can_search([failed, problem(LIVE_SEARCH, "TIMEOUT", "fix")])


def test_sentences_are_wrapped_and_long_words_are_not_broken(user: Stub) -> None:
    user.environ |= {"STUB_GEMINI_SCENARIO": "daily-quota"}
    text = run_command(user, "doctor").stdout

    assert "fix: Wait until the quota resets" in text
    assert max(len(line) for line in text.splitlines() if "/" not in line) <= 80
    assert _wrap(f"a {'x' * 120} b", 80) == ["a", "x" * 120, "b"]


def test_unusual_outputs_do_not_fail(user: Stub) -> None:
    user.environ |= {"COLUMNS": "0"}
    doctor_command = shlex.join(map(str, command("doctor", "--offline")))
    for redirection in (">/dev/null", ">&-", "--json | true"):
        script = f"set -o pipefail; {doctor_command} {redirection}"
        completed = subprocess.run(["bash", "-c", script], env=user.environ, capture_output=True)

        assert (completed.returncode, completed.stderr) == (0, b"")


def test_a_stub_does_not_prove_a_key(user: Stub) -> None:
    code, findings = doctor(user)

    finding = only(findings, "sign-in")
    assert (code, finding["status"]) == (0, "ok")
    assert "GEMINI_API_KEY" not in finding["message"]
    assert "says nothing about a key" in finding["message"]


def test_offline_says_what_was_not_tried(user: Stub, api: FakeApi) -> None:
    install_fake_official_cli(user)
    api.failure = api_error(400, INVALID_KEY)

    code, findings = doctor(user, "--offline")
    text = run_command(user, "doctor", "--offline").stdout
    both = run_command(user, "doctor", "--offline", "--live")

    finding = only(findings, "sign-in")
    assert (code, finding["status"], finding["proven"]) == (0, "ok", False)
    assert "not tried" in finding["message"]
    last_lines = " ".join(text.splitlines()[-2:])
    assert "A search can probably work. Not proven: sign-in." in last_lines
    assert "doctor --live" in last_lines
    assert both.returncode == 2


def test_a_full_disk_is_a_problem(user: Stub, mocker: MockerFixture) -> None:
    mocker.patch("shutil.disk_usage", return_value=SimpleNamespace(free=3 << 20))

    code, findings = doctor(user)

    finding = only(findings, "disk")
    assert (code, finding["status"]) == (1, "problem")
    assert "only 3 MB are free" in finding["message"]
    assert finding["fix"].startswith(f"df -h {user.config_dir}")


def test_a_disk_that_is_full_to_the_last_byte_is_a_problem(
    user: Stub, mocker: MockerFixture
) -> None:
    mocker.patch("os.write", side_effect=OSError(errno.ENOSPC, "No space left on device"))

    findings = list(check_config_dir(user.settings))

    assert [finding.status for finding in findings] == ["problem"]
    assert "No space left on device" in findings[0].message
    assert (findings[0].fix or "").startswith(f"df -h {user.config_dir}")


def test_fixes_are_in_the_words_of_the_platforms_shell() -> None:
    path = Path("/x y")
    commands = {
        platform: [
            shell_commands.set_variable("A", platform=platform),
            shell_commands.unset_variables(["A", "B"], platform),
            shell_commands.prepend_to_path("p", platform),
            shell_commands.make_private(path, platform),
            shell_commands.make_executable("p", platform),
            shell_commands.kill([1, 2], platform),
            shell_commands.request_headers("http://a b", platform),
            shell_commands.set_clock(platform),
        ]
        for platform in ("linux", "darwin", "win32")
    }

    assert commands["linux"] == [
        "export A=...",
        "unset A B",
        'export PATH="p:$PATH"',
        "chmod 700 '/x y'",
        "chmod +x p",
        "kill 1 2",
        "curl -I 'http://a b'",
        "sudo timedatectl set-ntp true",
    ]
    assert commands["darwin"] == [*commands["linux"][:-1], "sudo sntp -sS time.apple.com"]
    assert commands["win32"] == [
        '$env:A = "..."',
        "Remove-Item Env:A, Env:B",
        '$env:PATH = "p;$env:PATH"',
        'icacls "/x y" /inheritance:r /grant:r "$($env:USERNAME):(OI)(CI)F"',
        'Unblock-File "p"',
        "Stop-Process -Id 1, 2",
        'curl.exe -I "http://a b"',
        "w32tm /resync",
    ]


def test_node_is_installed_with_the_package_manager_of_the_platform(tmp_path: Path) -> None:
    without_manager = shell_commands.install_node("linux", str(tmp_path))
    make_executable(tmp_path / "dnf")

    assert shell_commands.install_node("linux", str(tmp_path)) == "sudo dnf install nodejs"
    assert without_manager == "xdg-open https://nodejs.org/en/download"
    assert shell_commands.install_node("darwin") == "brew install node"
    assert shell_commands.install_node("win32") == "winget install OpenJS.NodeJS.LTS"


def test_a_terminal_shows_what_is_being_checked(user: Stub) -> None:
    install_fake_official_cli(user)
    primary, secondary = pty.openpty()
    environ = {**user.environ, "COLUMNS": "80", "TERM": "xterm"}
    with subprocess.Popen(
        command("doctor", "--offline"), env=environ, stdin=secondary, stdout=secondary
    ) as process:
        os.close(secondary)
        output = b""
        with suppress(OSError):  # the terminal is closed
            while data := os.read(primary, 4096):
                output += data
    os.close(primary)

    assert process.returncode == 0
    assert b"checking the CLI against a fake API on this machine ..." in output
