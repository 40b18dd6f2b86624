"""The gemini CLI: where it is, who can see it, what it runs on, and how it is signed in."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from gemini_cli_mcp.cli.doctor.findings import UPGRADE, Finding, note, ok, problem
from gemini_cli_mcp.cli.install import own_command
from gemini_cli_mcp.errors import CliNotFound
from gemini_cli_mcp.json_values import as_object
from gemini_cli_mcp.process.run import run
from gemini_cli_mcp.providers.gemini.binary import (
    Binary,
    as_desktop_app,
    find_gemini,
    find_node,
    path_for,
)
from gemini_cli_mcp.providers.gemini.home import SignIn, sign_ins, user_folder
from gemini_cli_mcp.settings.env import Config

OLDEST_NODE = 20
WAYS_ON = (
    "Since June 2026 Google no longer serves personal Google logins (free, AI Pro, AI Ultra) in "
    "the gemini CLI. What works: an API key from Google AI Studio, Vertex AI, a Code Assist "
    "licence of an enterprise, or the `agy` CLI (GEMINI_MCP_PROVIDERS=antigravity)"
)
KEY = "export GEMINI_API_KEY=...  # from aistudio.google.com/apikey, or as a line in ~/.gemini/.env"
PLACEHOLDERS = {"...", "your key", "your-key", "any", "x"}


def binary(config: Config, environ: Mapping[str, str]) -> tuple[Binary | None, list[Finding]]:
    """The binary, if it can be used, and what is to be said of it."""
    try:
        found = find_gemini(config.cli_path, environ)
    except CliNotFound as error:
        fix = UPGRADE
        if "not executable" in error.message:
            fix = f"chmod +x {shlex.quote(config.cli_path)}"
        elif environ.get("GEMINI_MCP_CLI_PATH"):
            fix = f"unset GEMINI_MCP_CLI_PATH; {UPGRADE}"
        return None, [problem("gemini CLI", error.message, fix)]
    return found, [_described(found), *_in_a_desktop_app(found, config, environ)]


def _described(found: Binary) -> Finding:
    if found.official:
        return ok("gemini CLI", f"{found.version} at {found.path}")
    return note(
        "gemini CLI",
        f"{found.path} is not the official one (a wrapper or a stub): every search starts a new "
        "process, and what it proves depends on it",
    )


def _in_a_desktop_app(
    found: Binary, config: Config, environ: Mapping[str, str]
) -> Iterator[Finding]:
    environ = as_desktop_app(environ)
    try:
        seen = find_gemini(config.cli_path, environ)
    except CliNotFound:
        seen = None
    if seen is None or (found.official and not find_node(seen, environ)):
        program = shlex.join(own_command())
        what = "this gemini" if seen is None else "the Node that gemini needs"
        yield note(
            "desktop apps",
            f"they have a short PATH and would not find {what}; `install` writes where it is",
            f"{program} install claude-desktop  # or claude-code, cursor, vscode",
        )


async def starts(found: Binary, environ: Mapping[str, str], cwd: Path) -> Finding | None:
    """Whether the system can start it at all; None if it can."""
    try:
        await _said([*found.argv, "--version"], path_for(found, environ), cwd)
    except OSError as error:
        return problem("gemini CLI", f"{found.path} cannot be run: {error.strerror}", UPGRADE)
    return None


async def node(found: Binary, environ: Mapping[str, str], cwd: Path) -> Finding:
    """What the CLI runs on."""
    program = find_node(found, environ)
    if not program:
        return problem(
            "Node",
            "there is no `node` on PATH, and gemini needs it",
            f"install Node {OLDEST_NODE} or newer, or add its folder to PATH",
        )
    try:
        said = await _said([program, "--version"], path_for(found, environ), cwd)
    except OSError as error:
        said = f"no Node ({error.strerror})"
    number = re.match(r"v(\d+)\.", said)
    if not number or int(number[1]) < OLDEST_NODE:
        return problem(
            "Node",
            f"{program} is {said or 'no Node'}; gemini needs {OLDEST_NODE} or newer",
            f"install Node {OLDEST_NODE} or newer, and put its folder before "
            f"{Path(program).parent} on PATH",
        )
    return ok("Node", f"{said} at {program}")


async def _said(argv: list[str], path: str, cwd: Path) -> str:
    lines: list[bytes] = []
    await run(
        argv,
        stdin=b"",
        env={"PATH": path},
        cwd=cwd,
        on_line=lines.append,
        idle=lambda: 10.0,
        timeout=10.0,
    )
    return b"".join(lines).decode(errors="replace").strip()


def sign_in(environ: Mapping[str, str]) -> Iterator[Finding]:
    """How the CLI would be signed in; whether Google takes it, only `--live` can tell."""
    ways = sign_ins(environ)
    yield _kind(ways, environ)
    settings = user_folder(environ) / "settings.json"
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
        if environ["GEMINI_API_KEY"].strip().lower() in PLACEHOLDERS | {""}:
            return problem("sign-in", "GEMINI_API_KEY holds no key but a placeholder", KEY)
        return ok("sign-in", "GEMINI_API_KEY is set (not shown)")
    if first.auth_type == "vertex-ai":
        names = ("GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION")
        missing = [name for name in names if not environ.get(name)]
        if missing and not environ.get("GOOGLE_API_KEY"):
            fix = "; ".join(f"export {name}=..." for name in missing)
            return problem("sign-in", f"Vertex AI, but not {' and '.join(missing)}", fix)
        return ok("sign-in", "Vertex AI, by GOOGLE_* variables")
    if last.login_file and not _is_enterprise(environ):
        said = f"only the login in {last.login_file}"
        if last.env_file:
            said = f"{last.env_file}, and behind it the login in {last.login_file}"
            return note("sign-in", f"{said}. {WAYS_ON}", KEY)
        return problem("sign-in", f"{said}. {WAYS_ON}", KEY)
    if last.login_file:
        return ok("sign-in", f"the login in {last.login_file}, with a Google Cloud project")
    if first.env_file and first.env_file.stat().st_size:
        return ok("sign-in", f"{first.env_file} (its content was not read)")
    return problem("sign-in", f"there is none. {WAYS_ON}", KEY)


def _is_enterprise(environ: Mapping[str, str]) -> bool:
    return bool(environ.get("GOOGLE_CLOUD_PROJECT"))


def _selected_type(settings: Path) -> object:
    try:
        content = as_object(json.loads(settings.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError):
        return None
    security = as_object(content.get("security"))
    return as_object(security.get("auth")).get("selectedType") or content.get("selectedAuthType")
