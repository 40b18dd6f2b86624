"""The gemini CLI: where it is, who can see it, what it runs on, and how it is signed in."""

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from gemini_cli_mcp.config import Config
from gemini_cli_mcp.doctor.findings import Finding, note, ok, problem
from gemini_cli_mcp.errors import CliNotFound
from gemini_cli_mcp.models import as_object
from gemini_cli_mcp.process.run import run
from gemini_cli_mcp.providers import gemini_binary, gemini_home
from gemini_cli_mcp.providers.gemini_binary import Binary
from gemini_cli_mcp.providers.gemini_home import SignIn

SHORT_PATH = "/usr/bin:/bin:/usr/sbin:/sbin"
"""What a desktop app has, where a terminal has all that the shell's files add."""
OLDEST_NODE = 20
WAYS_ON = (
    "Since June 2026 Google no longer serves personal Google logins (free, AI Pro, AI Ultra) in "
    "the gemini CLI. What works: an API key from Google AI Studio, Vertex AI, a Code Assist "
    "licence of an enterprise, or the `agy` CLI (GEMINI_MCP_PROVIDERS=antigravity)"
)
KEY = "export GEMINI_API_KEY=...  # from aistudio.google.com/apikey, or as a line in ~/.gemini/.env"
INSTALL = "npm install -g @google/gemini-cli@latest"


def binary(config: Config, environ: Mapping[str, str]) -> tuple[Binary | None, list[Finding]]:
    """The binary, if it can be used, and what is to be said of it."""
    try:
        found = gemini_binary.find(config.cli_path, environ)
    except CliNotFound as error:
        fix = INSTALL
        if "not executable" in error.message:
            fix = f"chmod +x {config.cli_path}"
        elif "GEMINI_MCP_CLI_PATH" in error.message:
            fix = f"unset GEMINI_MCP_CLI_PATH  # or set it to what `which gemini` says; {INSTALL}"
        return None, [problem("gemini CLI", error.message, fix)]
    findings = [_described(found)]
    try:
        gemini_binary.find(config.cli_path, {**environ, "PATH": SHORT_PATH})
    except CliNotFound:
        findings.append(
            note(
                "desktop apps",
                "they have a short PATH and would not find this gemini",
                f"gemini-cli-mcp install CLIENT  # it writes GEMINI_MCP_CLI_PATH={found.path}",
            )
        )
    return found, findings


def _described(found: Binary) -> Finding:
    if found.official:
        return ok("gemini CLI", f"{found.version} at {found.path}")
    return note(
        "gemini CLI",
        f"{found.path} is not the official one (a wrapper or a stub): every search starts a new "
        "process, and what it proves depends on it",
    )


async def node(found: Binary, environ: Mapping[str, str], cwd: Path) -> Finding:
    """What the CLI runs on."""
    path = gemini_binary.path_for(found, environ)
    program = shutil.which("node", path=path)
    if not program:
        return problem(
            "Node",
            "there is no `node` on PATH, and gemini needs it",
            f"install Node {OLDEST_NODE} or newer, or add its folder to PATH",
        )
    lines: list[bytes] = []
    await run(
        [program, "--version"],
        stdin=b"",
        env={"PATH": path},
        cwd=cwd,
        on_line=lines.append,
        idle=lambda: 10.0,
        timeout=10.0,
    )
    said = b"".join(lines).decode(errors="replace").strip()
    number = re.match(r"v(\d+)\.", said)
    if not number or int(number[1]) < OLDEST_NODE:
        return problem(
            "Node",
            f"{program} is {said or 'no Node'}; gemini needs {OLDEST_NODE} or newer",
            f"install Node {OLDEST_NODE} or newer, and put its folder before "
            f"{Path(program).parent} on PATH",
        )
    return ok("Node", f"{said} at {program}")


def sign_in(environ: Mapping[str, str]) -> Iterator[Finding]:
    """How the CLI would be signed in; whether Google takes it, only `--live` can tell."""
    ways = gemini_home.sign_ins(environ)
    yield _kind(ways, environ)
    settings = _user_folder(environ) / "settings.json"
    chosen = _selected_type(settings)
    if chosen == "oauth-personal" and ways[0].auth_type == "gemini-api-key":
        yield note(
            "sign-in",
            f"{settings} still selects a personal login, which outranks the key in a plain "
            "`gemini`. This server uses the key",
            'in that file: "security": {"auth": {"selectedType": "gemini-api-key"}}',
        )


def _kind(ways: list[SignIn], environ: Mapping[str, str]) -> Finding:
    first, last = ways[0], ways[-1]
    if first.auth_type == "gemini-api-key" and not first.env_file:
        return ok("sign-in", "GEMINI_API_KEY is set (not shown)")
    if first.auth_type == "vertex-ai":
        return ok("sign-in", "Vertex AI, by GOOGLE_* variables")
    if last.login_file and not _is_enterprise(environ):
        said = f"only the login in {last.login_file}"
        if last.env_file:
            said = f"{last.env_file}, and behind it the login in {last.login_file}"
            return note("sign-in", f"{said}. {WAYS_ON}", KEY)
        return problem("sign-in", f"{said}. {WAYS_ON}", KEY)
    if last.login_file:
        return ok("sign-in", f"the login in {last.login_file}, with a Google Cloud project")
    if first.env_file:
        return ok("sign-in", f"{first.env_file} (its content was not read)")
    return problem("sign-in", f"there is none. {WAYS_ON}", KEY)


def _is_enterprise(environ: Mapping[str, str]) -> bool:
    return bool(environ.get("GOOGLE_CLOUD_PROJECT"))


def _user_folder(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("GEMINI_CLI_HOME") or environ.get("HOME") or Path.home()) / ".gemini"


def _selected_type(settings: Path) -> object:
    try:
        content = as_object(json.loads(settings.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError):
        return None
    security = as_object(content.get("security"))
    return as_object(security.get("auth")).get("selectedType") or content.get("selectedAuthType")
