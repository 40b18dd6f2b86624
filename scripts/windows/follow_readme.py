"""Run the README's commands for Windows as a new user, with a fake Gemini API.

    python -m scripts.windows.follow_readme CHECKOUT

The commands run in cmd.exe and not in PowerShell, which Wine does not have: `$env:NAME` becomes
`%NAME%`, and `&` before a program is left out. The key is a made-up one. The home folder is empty,
and its name has a space, an `&` and characters that code page 1252 does not have. At the end, an
MCP client calls `search` as Claude Desktop would, with the entry that was written.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from io import TextIOWrapper
from pathlib import Path
from typing import cast

from mcp import Client, StdioServerParameters

from tests.support import model_answer
from tests.support.fake_api import SEARCH, fake_api

KEPT_VARIABLES = re.compile(
    r"PATH|PATHEXT|SYSTEMROOT|SYSTEMDRIVE|COMSPEC|WINDIR|PROGRAMDATA|PROGRAMFILES|TEMP|TMP"
    r"|PIP_.*|NPM_CONFIG_.*|NODE_EXTRA_CA_CERTS|SSL_CERT_FILE",
    re.IGNORECASE,
)
USER = "Ann & 山田"
QUESTION = "为什么天空是蓝色的？"
ANSWER = "因为短波散射更强"
STEP_TIMEOUT = 300


def main() -> int:
    checkout = Path(sys.argv[1])
    cast("TextIOWrapper", sys.stdout).reconfigure(encoding="utf-8")
    # Programs that have just ended may still be in use for a moment.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, fake_api() as api:
        environ = new_user_environ(Path(folder) / USER)
        environ["GOOGLE_GEMINI_BASE_URL"] = api.url
        client_environ = dict(environ)
        for command in readme_commands((checkout / "README.md").read_text(encoding="utf-8")):
            started = time.monotonic()
            if not run_step(command, environ, checkout):
                return 1
            print(f"{time.monotonic() - started:6.1f} s  {command}", flush=True)
        file = Path(environ["APPDATA"], "Claude", "claude_desktop_config.json")
        api.calls, api.texts = [SEARCH], [model_answer(ANSWER)]
        return asyncio.run(call_search(file, client_environ))


def readme_commands(readme: str) -> list[str]:
    """Return the commands of the block for PowerShell, with a made-up key."""
    match = re.search(r"^```powershell\n(.*?)^```$", readme, re.M | re.S)
    if not match:
        raise SystemExit("README.md has no commands for PowerShell")
    return match[1].replace('"..."', '"made-up-key"').splitlines()


def new_user_environ(home: Path) -> dict[str, str]:
    roaming, local = home / "AppData" / "Roaming", home / "AppData" / "Local"
    for path in (roaming, local):
        path.mkdir(parents=True)
    path = os.pathsep.join((str(roaming / "npm"), os.environ["PATH"]))
    return {
        **{name: value for name, value in os.environ.items() if KEPT_VARIABLES.fullmatch(name)},
        "USERPROFILE": str(home),
        "APPDATA": str(roaming),
        "LOCALAPPDATA": str(local),
        "PATH": path,  # Node's installer adds npm's folder
    }


def run_step(command: str, environ: dict[str, str], checkout: Path) -> bool:
    """Run one line; a variable that it sets goes into `environ`."""

    def value_of(match: re.Match[str]) -> str:
        return environ[match[1]]

    assignment = re.fullmatch(r'\$env:(\w+) = "(.*)"', command)
    if assignment:
        environ[assignment[1]] = re.sub(r"\$env:(\w+)", value_of, assignment[2])
        return True
    line = re.sub(r"\$env:(\w+)", r"%\1%", command.removeprefix("& "))
    # /s: only the outer quotation marks are removed.
    completed = subprocess.run(
        f'cmd.exe /d /s /c "{line}"',
        cwd=checkout,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=STEP_TIMEOUT,
        check=False,
    )
    output = completed.stdout.decode("utf-8", errors="replace")
    if completed.returncode:
        print(f"FAILED with exit code {completed.returncode}: {command}\n{output}")
    elif command.startswith("gemini-cli-mcp"):
        print(output.rstrip())
    return completed.returncode == 0


async def call_search(file: Path, environ: dict[str, str]) -> int:
    entry = json.loads(file.read_bytes())["mcpServers"]["gemini-cli-mcp"]  # noqa: ASYNC240
    server = StdioServerParameters(
        command=entry["command"], args=entry["args"], env=environ | entry["env"]
    )
    async with Client(server) as client:
        result = await client.call_tool("search", {"query": QUESTION})
    content: dict[str, object] = result.structured_content or {}
    print(f"{entry['command']} answers: {content.get('result', content)}")
    return 0 if str(content.get("result")).startswith(ANSWER) else 1


if __name__ == "__main__":
    sys.exit(main())
