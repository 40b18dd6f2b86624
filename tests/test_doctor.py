"""`doctor` on broken set-ups: the cause is named, and the fix that it tells works."""

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import REAL_CLI, Result, Stub, command
from tests.test_gemini_binary import official

Change = Callable[[Stub], None]


def doctor(stub: Stub, *arguments: str) -> tuple[int, list[Result]]:
    done = subprocess.run(
        [*command("doctor"), "--json", *arguments],
        env=stub.environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
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
    stub.environ["GEMINI_MCP_CLI_PATH"] = str(official(stub.home / "old", "0.38.0"))


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
    official(stub.home / "new", "0.61.0")
    writes("nodes/node", "#!/bin/sh\necho v18.1.0\n", 0o755)(stub)
    stub.environ |= {
        "GEMINI_MCP_CLI_PATH": str(stub.home / "new/bin/gemini"),
        "PATH": f"{stub.home}/nodes:/usr/bin:/bin",
    }


def no_node(stub: Stub) -> None:
    official(stub.home / "new", "0.61.0")
    stub.environ |= {
        "GEMINI_MCP_CLI_PATH": str(stub.home / "new/bin/gemini"),
        "PATH": str(stub.home),
        "NVM_DIR": "/nowhere",
    }


def crashes(stub: Stub) -> None:
    """An official CLI that does not work."""
    path = official(stub.home / "new", "0.61.0")
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
    mends: Change
    status: str = "problem"


WORKING_CLI = unsets("GEMINI_MCP_CLI_PATH")
SETUPS: dict[str, Broken] = {
    "no CLI": Broken(
        sets(GEMINI_MCP_CLI_PATH="no-such-gemini"),
        "gemini CLI",
        "neither on PATH",
        "npm install -g @google/gemini-cli",
        WORKING_CLI,
    ),
    "a path that is none": Broken(
        sets(GEMINI_MCP_CLI_PATH="/nowhere/gemini"),
        "gemini CLI",
        "/nowhere/gemini",
        "unset GEMINI_MCP_CLI_PATH",
        WORKING_CLI,
    ),
    "not executable": Broken(
        both(writes("gemini", "#!/bin/sh\n"), in_home("GEMINI_MCP_CLI_PATH", "gemini")),
        "gemini CLI",
        "not executable",
        "chmod +x",
        lambda stub: (stub.home / "gemini").chmod(0o755),
    ),
    "too old": Broken(too_old, "gemini CLI", "too old", "@latest", WORKING_CLI),
    "no Node": Broken(no_node, "Node", "no `node`", "install Node 20", WORKING_CLI),
    "an old Node": Broken(old_node, "Node", "v18.1.0", "install Node 20", WORKING_CLI),
    "a CLI that does not run": Broken(
        crashes, "dry run", "a search on loopback failed", "@latest", WORKING_CLI
    ),
    "no sign-in": Broken(
        unsets("GEMINI_API_KEY"),
        "sign-in",
        "there is none",
        "export GEMINI_API_KEY",
        sets(GEMINI_API_KEY="a-new-key"),
    ),
    "a personal login alone": Broken(
        both(unsets("GEMINI_API_KEY"), writes(".gemini/oauth_creds.json", "{}")),
        "sign-in",
        "June 2026",
        "~/.gemini/.env",
        sets(GEMINI_API_KEY="a-new-key"),
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
        "note",
    ),
    "a variable with a wrong value": Broken(
        sets(GEMINI_MCP_TIMEOUT="soon"),
        "configuration",
        "GEMINI_MCP_TIMEOUT='soon'",
        "correct or unset it",
        unsets("GEMINI_MCP_TIMEOUT"),
    ),
    "an engines file that is broken": Broken(
        both(writes("engines.json", "{"), in_home("GEMINI_MCP_WEB_SEARCH", "engines.json")),
        "configuration",
        "engines.json",
        "correct or unset it",
        unsets("GEMINI_MCP_WEB_SEARCH"),
    ),
    "an engine without its key": Broken(
        both(
            writes("engines.json", engines("GLM_WORK")),
            in_home("GEMINI_MCP_WEB_SEARCH", "engines.json"),
        ),
        "engines",
        "GLM_WORK is not set",
        "export GLM_WORK=",
        sets(GLM_WORK="k"),
    ),
    "a folder that others read": Broken(
        lambda stub: stub.config_dir.mkdir(mode=0o755),
        "folder",
        "can be read by others",
        "chmod 700",
        lambda stub: stub.config_dir.chmod(0o700),
    ),
    "a folder that is a file": Broken(
        both(writes("file", ""), in_home("GEMINI_MCP_CONFIG_DIR", "file")),
        "configuration",
        "GEMINI_MCP_CONFIG_DIR",
        "correct or unset it",
        lambda stub: stub.environ.update(GEMINI_MCP_CONFIG_DIR=str(stub.config_dir)),
    ),
    "antigravity without agy": Broken(
        sets(GEMINI_MCP_PROVIDERS="antigravity"),
        "provider antigravity",
        "There is no `agy`",
        "remove `antigravity` from GEMINI_MCP_PROVIDERS",
        unsets("GEMINI_MCP_PROVIDERS"),
    ),
    "api without a key": Broken(
        both(unsets("GEMINI_API_KEY"), sets(GEMINI_MCP_PROVIDERS="api")),
        "provider api",
        "there is no key",
        "export GEMINI_API_KEY",
        sets(GEMINI_API_KEY="a-new-key"),
    ),
}


@pytest.fixture
def user(stub: Stub) -> Stub:
    """Somebody with everything that a search needs; the real CLI is on PATH where it is there."""
    if REAL_CLI.exists():
        del stub.environ["GEMINI_MCP_CLI_PATH"]
        stub.environ["PATH"] = f"{REAL_CLI.parent}{os.pathsep}{stub.environ['PATH']}"
    else:
        (stub.home / ".local/bin").mkdir(parents=True)
        (stub.home / ".local/bin/gemini").symlink_to(stub.environ.pop("GEMINI_MCP_CLI_PATH"))
    stub.environ["GEMINI_API_KEY"] = "a-secret-key"
    return stub


@pytest.mark.parametrize("broken", SETUPS.values(), ids=SETUPS.keys())
def test_the_cause_is_named_and_the_fix_works(user: Stub, broken: Broken) -> None:
    path = user.environ["PATH"]
    broken.breaks(user)

    code, findings = doctor(user)
    broken.mends(user)
    user.environ["PATH"] = path
    mended, after = doctor(user)

    [found] = [
        finding
        for finding in findings
        if (finding["status"], finding["topic"]) == (broken.status, broken.topic)
    ]
    assert broken.named in found["message"]
    assert broken.told in found["fix"]
    assert code == (1 if broken.status == "problem" else 0)
    assert mended == 0
    assert not [f for f in after if f["status"] == "problem" or broken.named in f["message"]]
    assert "a-secret-key" not in json.dumps(findings)


def test_what_dead_servers_left_is_found(user: Stub) -> None:
    left = user.config_dir / "servers" / "dead"
    left.mkdir(parents=True)
    user.config_dir.chmod(0o700)
    environ = {**user.environ, "GEMINI_CLI_HOME": f"{left}/search/home"}
    with subprocess.Popen(["sleep", "60"], env=environ) as orphan:
        _, findings = doctor(user)
        orphan.kill()

    told = [finding for finding in findings if finding["topic"] == "left-overs"]
    assert told[0]["fix"] == f"kill {orphan.pid}"
    assert "1 folders" in told[1]["message"]


@pytest.mark.skipif(not REAL_CLI.exists(), reason="scripts/test installs it where Node is")
def test_a_healthy_set_up_has_its_dry_run(user: Stub) -> None:
    code, findings = doctor(user)

    told = {finding["topic"]: finding for finding in findings}
    assert code == 0
    assert "nothing of yours" in told["isolation"]["message"]
    assert "kept ready (ACP)" in told["warm process"]["message"]
    assert "0.61.0" in told["gemini CLI"]["message"]
    assert told["desktop apps"]["status"] == "note"  # npm's folder is not on a short PATH
    assert "GEMINI_MCP_CLI_PATH=" in told["desktop apps"]["fix"]


def test_one_provider_that_works_is_enough(user: Stub) -> None:
    user.environ["GEMINI_MCP_PROVIDERS"] = "gemini,antigravity"

    code, findings = doctor(user)

    assert [f["topic"] for f in findings if f["status"] == "problem"] == ["provider antigravity"]
    assert code == 0


def test_live_searches_and_says_how_that_went(user: Stub) -> None:
    user.environ["GEMINI_MCP_CLI_PATH"] = str(Path(__file__).parent.parent / "scripts/stub-gemini")
    code, findings = doctor(user, "--live")
    user.environ["STUB_GEMINI_SCENARIO"] = "daily-quota"
    failed, after = doctor(user, "--live")

    assert (code, findings[-1]["topic"], findings[-1]["status"]) == (0, "live search", "ok")
    assert failed == 1
    assert "QUOTA_EXHAUSTED" in after[-1]["message"]


def test_a_person_gets_lines_to_read(user: Stub) -> None:
    del user.environ["GEMINI_API_KEY"]
    done = subprocess.run(
        command("doctor"), env=user.environ, capture_output=True, text=True, check=False
    )

    assert done.returncode == 1
    assert "problem sign-in: there is none." in done.stdout
    assert "\n        fix: export GEMINI_API_KEY=..." in done.stdout
    assert done.stdout.endswith("A search cannot work yet: mend the problems above.\n")
