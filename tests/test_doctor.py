"""`doctor` on broken set-ups: the cause is named, and the fix that it tells works."""

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from gemini_cli_mcp.workspace import LOCK_CONTENT, LOCK_FILE
from tests.support import REAL_CLI, STUB, Result, Stub, command, fake_gemini
from tests.support.binaries import install_official_cli
from tests.support.cli import run_command
from tests.support.matrix import needs_real_cli

Change = Callable[[Stub], None]


def doctor(stub: Stub, *arguments: str) -> tuple[int, list[Result]]:
    done = run_command(stub, "doctor", "--json", *arguments)
    assert done.stderr == ""
    told = json.loads(done.stdout)
    assert told["ok"] is (done.returncode == 0)
    return done.returncode, told["findings"]


def sets(**variables: str) -> Change:
    return lambda stub: stub.environ.update(variables)


def unsets(*names: str) -> Change:
    def change(stub: Stub) -> None:
        for name in names:
            stub.environ.pop(name, None)

    return change


def writes(name: str, text: str, mode: int = 0o600) -> Change:
    def change(stub: Stub) -> None:
        path = stub.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)

    return change


def too_old(stub: Stub) -> None:
    stub.environ["GEMINI_MCP_CLI_PATH"] = str(install_official_cli(stub.home / "old", "0.38.0"))


def engines(key: str) -> str:
    engine = {"id": "glm", "providerKey": "glm.work.glm-4.6", "description": "GLM"}
    routing = {"web_search": [{"id": "r", "priority": 1, "targets": ["glm.work.glm-4.6"]}]}
    return json.dumps(
        {
            "webSearch": {"engines": [engine]},
            "virtualrouter": {"routing": routing},
            "accounts": {"work": {"apiKeyEnv": key}},
        }
    )


def in_home(variable: str, name: str) -> Change:
    return lambda stub: stub.environ.update({variable: str(stub.home / name)})


def both(*changes: Change) -> Change:
    def change(stub: Stub) -> None:
        for each in changes:
            each(stub)

    return change


def old_node(stub: Stub) -> None:
    install_official_cli(stub.home / "new", "0.61.0")
    writes("nodes/node", "#!/bin/sh\necho v18.1.0\n", 0o755)(stub)
    stub.environ |= {
        "GEMINI_MCP_CLI_PATH": str(stub.home / "new/bin/gemini"),
        "PATH": f"{stub.home}/nodes:/usr/bin:/bin",
    }


def no_node(stub: Stub) -> None:
    install_official_cli(stub.home / "new", "0.61.0")
    stub.environ |= {
        "GEMINI_MCP_CLI_PATH": str(stub.home / "new/bin/gemini"),
        "PATH": str(stub.home),
        "NVM_DIR": "/nowhere",
    }


def crashes(stub: Stub) -> None:
    """An official CLI that does not work."""
    path = install_official_cli(stub.home / "new", "0.61.0")
    path.resolve().write_text("#!/bin/sh\necho 'Error: cannot find module' >&2\nexit 1\n")
    stub.environ["GEMINI_MCP_CLI_PATH"] = str(path)


@dataclass(frozen=True)
class Broken:
    """A set-up that does not work, what names it, and what its fix comes to."""

    breaks: Change
    topic: str
    named: str
    told: str
    """A part of the fix."""
    mends: Change | None = None
    """What a person does where the fix is no command; else the command itself is run."""
    status: str = "problem"


WORKING_CLI = unsets("GEMINI_MCP_CLI_PATH")
SETUPS: dict[str, Broken] = {
    "no CLI": Broken(
        sets(GEMINI_MCP_CLI_PATH="no-such-gemini"),
        "gemini CLI",
        "neither on PATH",
        "npm install -g @google/gemini-cli",
    ),
    "a path that is none": Broken(
        sets(GEMINI_MCP_CLI_PATH="/nowhere/gemini"),
        "gemini CLI",
        "/nowhere/gemini",
        "unset GEMINI_MCP_CLI_PATH",
    ),
    "not executable": Broken(
        both(writes("gemini", "#!/bin/sh\n"), in_home("GEMINI_MCP_CLI_PATH", "gemini")),
        "gemini CLI",
        "not executable",
        "chmod +x",
    ),
    "too old": Broken(too_old, "gemini CLI", "too old", "@latest"),
    "no Node": Broken(no_node, "Node", "no `node`", "install Node 20", WORKING_CLI),
    "an old Node": Broken(old_node, "Node", "v18.1.0", "install Node 20", WORKING_CLI),
    "a CLI that does not run": Broken(
        crashes, "dry run", "a search on loopback failed", "@latest", WORKING_CLI
    ),
    "no sign-in": Broken(
        unsets("GEMINI_API_KEY"),
        "sign-in",
        "no sign-in was found",
        "export GEMINI_API_KEY",
    ),
    "a personal login alone": Broken(
        both(unsets("GEMINI_API_KEY"), writes(".gemini/oauth_creds.json", "{}")),
        "sign-in",
        "June 2026",
        "~/.gemini/.env",
    ),
    "a personal login that outranks the key": Broken(
        writes(
            ".gemini/settings.json", '{"security": {"auth": {"selectedType": "oauth-personal"}}}'
        ),
        "sign-in",
        "outranks the key",
        '"selectedType": "gemini-api-key"',
        writes(
            ".gemini/settings.json", '{"security": {"auth": {"selectedType": "gemini-api-key"}}}'
        ),
        status="note",
    ),
    "a variable with a wrong value": Broken(
        sets(GEMINI_MCP_TIMEOUT="soon"),
        "configuration",
        "GEMINI_MCP_TIMEOUT='soon'",
        "unset GEMINI_MCP_TIMEOUT",
    ),
    "an engines file that is broken": Broken(
        both(writes("engines.json", "{"), in_home("GEMINI_MCP_WEB_SEARCH", "engines.json")),
        "configuration",
        "engines.json",
        "unset GEMINI_MCP_WEB_SEARCH",
    ),
    "an engine without its key": Broken(
        both(
            writes("engines.json", engines("GLM_WORK")),
            in_home("GEMINI_MCP_WEB_SEARCH", "engines.json"),
        ),
        "engines",
        "GLM_WORK is not set",
        "export GLM_WORK=",
        status="note",
    ),
    "a folder that cannot be made": Broken(
        sets(GEMINI_MCP_CONFIG_DIR="/proc/none"),
        "folder",
        "/proc/none",
        "export GEMINI_MCP_CONFIG_DIR=",
        lambda stub: stub.environ.update(GEMINI_MCP_CONFIG_DIR=str(stub.config_dir)),
    ),
    "Vertex AI without a project": Broken(
        both(unsets("GEMINI_API_KEY"), sets(GOOGLE_GENAI_USE_VERTEXAI="true")),
        "sign-in",
        "GOOGLE_CLOUD_PROJECT and GOOGLE_CLOUD_LOCATION",
        "export GOOGLE_CLOUD_PROJECT=",
    ),
    "a key that is none": Broken(
        sets(GEMINI_API_KEY="..."), "sign-in", "a placeholder", "export GEMINI_API_KEY="
    ),
    "a wrapper that cannot be run": Broken(
        both(
            writes("gemini", "#!/no/such/program\n", 0o755),
            in_home("GEMINI_MCP_CLI_PATH", "gemini"),
        ),
        "gemini CLI",
        "cannot be run",
        "npm install -g @google/gemini-cli",
        WORKING_CLI,
    ),
    "a folder that is a file": Broken(
        both(writes("file", ""), in_home("GEMINI_MCP_CONFIG_DIR", "file")),
        "configuration",
        "GEMINI_MCP_CONFIG_DIR",
        "unset GEMINI_MCP_CONFIG_DIR",
    ),
    "antigravity without agy": Broken(
        sets(GEMINI_MCP_PROVIDERS="antigravity"),
        "provider antigravity",
        "`agy` was not found",
        "remove `antigravity` from GEMINI_MCP_PROVIDERS",
        unsets("GEMINI_MCP_PROVIDERS"),
    ),
    "api without a key": Broken(
        both(unsets("GEMINI_API_KEY"), sets(GEMINI_MCP_PROVIDERS="api")),
        "provider api",
        "no API key is set",
        "export GEMINI_API_KEY",
    ),
}


def follow(stub: Stub, fix: str) -> None:
    """Do in a shell what the fix says, with a key of one's own where it has dots."""
    npm = stub.home / "npm"
    npm.mkdir()
    (npm / "npm").write_text(
        f"#!/bin/sh\nmkdir -p {stub.home}/.local/bin\nln -sf {STUB} {stub.home}/.local/bin/gemini\n"
    )
    (npm / "npm").chmod(0o755)
    script = f"{fix.replace('...', 'a-value-of-mine')}\nenv -0"
    environ = {**stub.environ, "PATH": f"{npm}{os.pathsep}{stub.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-euc", script], env=environ, capture_output=True, text=True, check=True
    )
    after = dict(line.split("=", 1) for line in done.stdout.split("\0") if "=" in line)
    path = stub.environ["PATH"]
    stub.environ.clear()
    stub.environ.update(after, PATH=path)


@pytest.fixture
def user(stub: Stub) -> Stub:
    """Somebody with everything that a search needs; the CLI is the stub."""
    (stub.home / ".local/bin").mkdir(parents=True)
    (stub.home / ".local/bin/gemini").symlink_to(stub.environ.pop("GEMINI_MCP_CLI_PATH"))
    stub.environ["GEMINI_API_KEY"] = "a-secret-key"
    return stub


@pytest.mark.parametrize("broken", SETUPS.values(), ids=SETUPS.keys())
def test_the_cause_is_named_and_the_fix_works(user: Stub, broken: Broken) -> None:
    path = user.environ["PATH"]
    broken.breaks(user)

    code, findings = doctor(user)
    [found] = [
        finding
        for finding in findings
        if (finding["status"], finding["topic"]) == (broken.status, broken.topic)
    ]
    if broken.mends:
        broken.mends(user)
        user.environ["PATH"] = path
    else:
        follow(user, found["fix"])
    mended, after = doctor(user)

    assert broken.named in found["message"]
    assert broken.told in found["fix"]
    assert code == (1 if broken.status == "problem" else 0)
    assert mended == 0
    assert not [f for f in after if f["status"] == "problem" or broken.named in f["message"]]
    assert "a-secret-key" not in json.dumps(findings)


def foreign_node(stub: Stub) -> None:
    """An official CLI, and a node for another machine."""
    path = install_official_cli(stub.home / "new", "0.61.0")
    writes("nodes/node", "\x7fELF", 0o755)(stub)
    stub.environ["GEMINI_MCP_CLI_PATH"] = str(path)
    stub.environ["PATH"] = f"{stub.home}/nodes:{stub.environ['PATH']}"


def official_behind_proxies(stub: Stub) -> None:
    """One that heeds proxies, as the real one does; loopback must not go through them."""
    writes("nodes/node", "#!/bin/sh\necho v22.1.0\n", 0o755)(stub)
    stub.environ |= {
        "GEMINI_MCP_CLI_PATH": str(fake_gemini.install(stub.home)),
        "PATH": f"{stub.home}/nodes:{stub.environ['PATH']}",
        "http_proxy": "http://127.0.0.1:9",
        "https_proxy": "http://127.0.0.1:9",
    }


Told = tuple[str, str, str]
"""Status, topic and a part of the message."""
ODD: dict[str, tuple[Change, Told]] = {
    "a home that is a file": (
        both(writes("file", ""), in_home("HOME", "file")),
        ("problem", "gemini CLI", "neither on PATH"),
    ),
    "no home": (
        both(unsets("HOME"), sets(GEMINI_MCP_CLI_PATH="no-such-gemini")),
        ("problem", "gemini CLI", "neither on PATH"),
    ),
    "a login folder that is a file": (
        both(unsets("GEMINI_API_KEY"), writes(".gemini", "")),
        ("problem", "sign-in", "no sign-in was found"),
    ),
    "a node of another machine": (foreign_node, ("problem", "Node", "nodes/node")),
    "proxies": (official_behind_proxies, ("ok", "isolation", "none of your configuration")),
    "a folder beyond ASCII": (in_home("GEMINI_MCP_CONFIG_DIR", "é"), ("ok", "folder", "é")),
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_machine_gets_findings_too(user: Stub, name: str) -> None:
    user.environ["GEMINI_MCP_CONFIG_DIR"] = str(user.config_dir)
    change, (status, topic, part) = ODD[name]
    change(user)

    _, findings = doctor(user)

    told = {finding["topic"]: finding for finding in findings}
    assert told[topic]["status"] == status and part in told[topic]["message"]
    # One thing that is odd does not keep the others from being looked at.
    assert {"configuration", "folder", "gemini CLI", "sign-in", "engines", "network"} <= set(told)


def test_a_cli_that_lets_the_users_set_up_in_is_no_good(user: Stub) -> None:
    writes("nodes/node", "#!/bin/sh\necho v22.1.0\n", 0o755)(user)
    program = fake_gemini.install(user.home)
    honest, leaks = '{"text": prompt}', '{"text": (Path.home() / ".gemini/GEMINI.md").read_text()}'
    program.write_text(program.read_text().replace(honest, leaks))
    user.environ["GEMINI_MCP_CLI_PATH"] = str(program)
    user.environ["PATH"] = f"{user.home}/nodes:{user.environ['PATH']}"

    code, findings = doctor(user)

    told = {finding["topic"]: finding for finding in findings}
    assert (code, told["isolation"]["status"]) == (1, "problem")
    assert "leaked into the run" in told["isolation"]["message"]


def test_an_ascii_terminal_gets_findings_too(user: Stub) -> None:
    user.environ |= {
        "PYTHONIOENCODING": "ascii",
        "GEMINI_MCP_CONFIG_DIR": str(user.home / "é"),
    }

    done = subprocess.run(command("doctor"), env=user.environ, capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")
    assert "\\xe9, private and writable" in done.stdout


@needs_real_cli
def test_a_gemini_outside_of_path_works(user: Stub) -> None:
    place = user.home / ".npm-global/bin"
    place.mkdir(parents=True)
    (place / "gemini").symlink_to(REAL_CLI.resolve())

    code, findings = doctor(user)

    assert code == 0
    assert str(place) in next(f["message"] for f in findings if f["topic"] == "gemini CLI")


def test_what_dead_servers_left_is_found(user: Stub) -> None:
    left = user.config_dir / "servers" / "0123456789abcdef"
    left.mkdir(parents=True)
    (left / LOCK_FILE).write_bytes(LOCK_CONTENT)
    user.config_dir.chmod(0o700)
    environ = {**user.environ, "GEMINI_CLI_HOME": f"{left}/search/home"}
    with subprocess.Popen(["sleep", "60"], env=environ) as orphan:
        _, findings = doctor(user)
        orphan.kill()

    told = [finding for finding in findings if finding["topic"] == "stale servers"]
    assert told[0]["fix"] == f"kill {orphan.pid}"
    assert "1 folder of" in told[1]["message"]


def test_a_folder_that_others_can_read_is_named_and_left_as_it_is(user: Stub) -> None:
    user.config_dir.mkdir(mode=0o755)

    code, findings = doctor(user)

    [told] = [finding for finding in findings if finding["status"] == "note" and "fix" in finding]
    assert (code, told["topic"], told["fix"]) == (0, "folder", f"chmod 700 {user.config_dir}")
    assert user.config_dir.stat().st_mode & 0o777 == 0o755


@needs_real_cli
def test_a_healthy_set_up_has_its_dry_run(user: Stub) -> None:
    (user.home / ".local/bin/gemini").unlink()
    user.environ["PATH"] = f"{REAL_CLI.parent}{os.pathsep}{user.environ['PATH']}"

    code, findings = doctor(user)

    told = {finding["topic"]: finding for finding in findings}
    assert code == 0
    assert "none of your configuration" in told["isolation"]["message"]
    assert "kept ready (ACP)" in told["warm process"]["message"]
    assert "0.61.0" in told["gemini CLI"]["message"]
    assert told["desktop apps"]["status"] == "note"  # npm's folder is not on a short PATH
    assert "install claude-desktop" in told["desktop apps"]["fix"]


def test_one_provider_that_works_is_enough(user: Stub) -> None:
    user.environ["GEMINI_MCP_PROVIDERS"] = "gemini,antigravity"

    code, findings = doctor(user)

    assert [f["topic"] for f in findings if f["status"] == "problem"] == ["provider antigravity"]
    assert code == 0


def test_live_searches_and_says_how_that_went(user: Stub) -> None:
    code, findings = doctor(user, "--live")
    user.environ["STUB_GEMINI_SCENARIO"] = "daily-quota"
    failed, after = doctor(user, "--live")

    assert (code, findings[-1]["topic"], findings[-1]["status"]) == (0, "live search", "ok")
    assert failed == 1
    assert "QUOTA_EXHAUSTED" in after[-1]["message"]


def test_a_person_gets_lines_to_read(user: Stub) -> None:
    del user.environ["GEMINI_API_KEY"]
    done = run_command(user, "doctor")

    assert done.returncode == 1
    assert "problem sign-in: no sign-in was found." in done.stdout
    assert "\n        fix: export GEMINI_API_KEY=..." in done.stdout
    assert done.stdout.endswith("A search cannot work yet: fix the problems above.\n")
