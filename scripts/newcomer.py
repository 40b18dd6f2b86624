"""Run the README's installation in an empty home folder, and let Claude Code call the result.

The commands are read from README.md and run as written, in a fresh clone. Only three things differ,
because there is no key, no Gemini API and no Claude Desktop here: the key is a made-up one, the
server uses the stub CLI, and the client is Claude Code, with a scripted model.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from scripts.messages_api import ScriptedModel, serve_messages_api

ROOT = Path(__file__).resolve().parent.parent
CLAUDE = ROOT / "tests/claude-code/node_modules/.bin/claude"
TOOL = "mcp__gemini-cli-mcp__search"
QUESTION = "What is the Model Context Protocol?"
CLAUDE_COMMAND = f'claude -p "{QUESTION}" --allowedTools {TOOL}'
SUBSTITUTIONS = {"GEMINI_API_KEY=...": "GEMINI_API_KEY=newcomer", "claude-desktop": "claude-code"}
KEPT_VARIABLES = re.compile(
    r"PIP_(INDEX_URL|EXTRA_INDEX_URL|FIND_LINKS|CERT|TRUSTED_HOST|DEFAULT_TIMEOUT)"
    r"|NPM_CONFIG_(REGISTRY|CAFILE|(HTTPS_|NO)?PROXY)"
    r"|SSL_CERT_(FILE|DIR)|NODE_EXTRA_CA_CERTS|REQUESTS_CA_BUNDLE|(HTTPS?|NO)_PROXY",
    re.IGNORECASE,
)
"""Variables that package managers may need to reach their index; none says where to install."""
CLAUDE_VARIABLES = {
    "ANTHROPIC_API_KEY": "newcomer",
    # Nothing but the scripted model: no telemetry, no updates.
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    # A headless run must offer all MCP tools in its first request, as it does not get a second one.
    "ENABLE_TOOL_SEARCH": "false",
    "MCP_CONNECTION_NONBLOCKING": "false",
}
STEP_TIMEOUT = 300
GOAL_SECONDS = 120


@dataclass(frozen=True)
class Step:
    """A command that has run."""

    command: str
    seconds: float


class StepFailed(Exception):
    """A command failed; the message says which."""


def main() -> int:
    if subprocess.run(["git", "diff", "--quiet", "HEAD"], cwd=ROOT, check=False).returncode:
        print("Uncommitted changes are not tried: the newcomer clones the last commit.")
    model = ScriptedModel(TOOL, {"query": QUESTION})
    with TemporaryDirectory(prefix="newcomer-") as folder, serve_messages_api(model):
        home, checkout = Path(folder) / "home", Path(folder) / "gemini-cli-mcp"
        home.mkdir()
        environ = build_environ(home, checkout, model.url)
        try:
            steps = [run_step(f"git clone --quiet {ROOT} {checkout}", [], environ, home)]
            exports: list[str] = []
            for command in readme_commands((checkout / "README.md").read_text(encoding="utf-8")):
                steps.append(run_step(command, exports, environ, checkout))
                if command.startswith("export "):
                    exports.append(command)
            steps.append(run_step(CLAUDE_COMMAND, exports, environ, home))
            check_tool_result(model)
        except StepFailed as error:
            print(f"FAILED: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130
    print_times(steps)
    return 0


def readme_commands(readme: str) -> list[str]:
    """Return the commands of the section Install, without their comments."""
    match = re.search(r"^## Install$.*?^```sh\n(.*?)^```$", readme, re.M | re.S)
    if not match:
        raise StepFailed("README.md has no commands in its section Install")
    commands = [line.partition("  #")[0].strip() for line in match[1].splitlines()]
    for written, replacement in SUBSTITUTIONS.items():
        if not any(written in command for command in commands):
            raise StepFailed(f"README.md no longer has {written}; adapt scripts/newcomer.py")
        commands = [command.replace(written, replacement) for command in commands]
    return commands


def build_environ(home: Path, checkout: Path, api_url: str) -> dict[str, str]:
    """Return the environment of a new user: an empty home, and nothing of this terminal's."""
    npm_prefix = home / ".npm-global"
    path = (npm_prefix / "bin", Path(sys.executable).parent, CLAUDE.parent, os.environ["PATH"])
    return {
        **{name: value for name, value in os.environ.items() if KEPT_VARIABLES.fullmatch(name)},
        "HOME": str(home),
        "TMPDIR": str(home.parent),
        "CLAUDE_CODE_TMPDIR": str(home.parent),
        "LANG": "C.UTF-8",
        "NPM_CONFIG_PREFIX": str(npm_prefix),  # `npm install -g` must not change this machine
        "PATH": os.pathsep.join(map(str, path)),
        "GEMINI_MCP_CLI_PATH": str(checkout / "scripts/stub-gemini"),
        "ANTHROPIC_BASE_URL": api_url,
        **CLAUDE_VARIABLES,
    }


def run_step(command: str, exports: Iterable[str], environ: dict[str, str], cwd: Path) -> Step:
    """Run a command after the exports before it, as the same terminal would."""
    print(f"\n$ {command}", flush=True)
    start = time.monotonic()
    process = subprocess.Popen(
        ["bash", "-ec", "\n".join((*exports, command))],
        cwd=cwd,
        env=environ,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        exit_code = process.wait(STEP_TIMEOUT)
    except subprocess.TimeoutExpired:
        raise StepFailed(f"{command} (not finished after {STEP_TIMEOUT} s)") from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # whatever it left behind
        process.wait()
    if exit_code:
        raise StepFailed(f"{command} (exit code {exit_code})")
    return Step(command, time.monotonic() - start)


def check_tool_result(model: ScriptedModel) -> None:
    """Check that Claude Code called our tool and gave its report to the model."""
    if not model.tool_results:
        raise StepFailed(f"Claude Code did not call {TOOL}; it offers {sorted(model.tools)}")
    result = model.tool_results[-1]
    try:
        is_success = json.loads(result)["success"]
    except (ValueError, KeyError, TypeError):
        is_success = False  # Claude Code's own error message
    if not is_success:
        raise StepFailed(f"the tool returned an error: {result[:300]}")


def print_times(steps: list[Step]) -> None:
    total = sum(step.seconds for step in steps)
    print("\nFrom an empty home folder to an answer in Claude Code:")
    for step in steps:
        print(f"{step.seconds:7.1f} s  {step.command}")
    print(f"{total:7.1f} s  in all; the goal is {GOAL_SECONDS} s")


if __name__ == "__main__":
    sys.exit(main())
