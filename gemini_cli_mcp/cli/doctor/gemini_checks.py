"""Checks of the gemini CLI: its location, visibility to desktop apps, Node and sign-in."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from gemini_cli_mcp.cli.doctor.findings import UPGRADE_COMMAND, Finding, note, ok, problem
from gemini_cli_mcp.cli.install import program_argv
from gemini_cli_mcp.errors import CliNotFound
from gemini_cli_mcp.json_values import object_or_empty
from gemini_cli_mcp.process.run import run
from gemini_cli_mcp.providers.gemini.binary import (
    GeminiBinary,
    child_path,
    desktop_app_environ,
    find_gemini,
    find_node,
)
from gemini_cli_mcp.providers.gemini.home import SignIn, available_sign_ins, user_folder
from gemini_cli_mcp.settings.env import Settings

MIN_NODE_MAJOR = 20
SIGN_IN_OPTIONS = (
    "Since June 2026 Google no longer accepts personal Google logins (free, AI Pro, AI Ultra) in "
    "the gemini CLI. Use an API key from Google AI Studio, Vertex AI, an enterprise Code Assist "
    "license, or the `agy` CLI (GEMINI_MCP_PROVIDERS=antigravity)"
)
SET_KEY_COMMAND = (
    "export GEMINI_API_KEY=...  # from aistudio.google.com/apikey; or put it into ~/.gemini/.env"
)
PLACEHOLDERS = {"...", "your key", "your-key", "any", "x"}


def check_binary(
    settings: Settings, environ: Mapping[str, str]
) -> tuple[GeminiBinary | None, list[Finding]]:
    """Return the binary, or None if it is unusable, and the findings about it."""
    try:
        binary = find_gemini(settings.cli_path, environ)
    except CliNotFound as error:
        fix = UPGRADE_COMMAND
        if "not executable" in error.message:
            fix = f"chmod +x {shlex.quote(settings.cli_path)}"
        elif environ.get("GEMINI_MCP_CLI_PATH"):
            fix = f"unset GEMINI_MCP_CLI_PATH; {UPGRADE_COMMAND}"
        return None, [problem("gemini CLI", error.message, fix)]
    return binary, [_binary_finding(binary), *_check_desktop_app_path(binary, settings, environ)]


def _binary_finding(binary: GeminiBinary) -> Finding:
    if binary.is_official:
        return ok("gemini CLI", f"{binary.version} at {binary.path}")
    return note(
        "gemini CLI",
        f"{binary.path} is not the official CLI (a wrapper or a stub): every search starts a new "
        "process, and the evidence for its sources may be weaker",
    )


def _check_desktop_app_path(
    binary: GeminiBinary, settings: Settings, environ: Mapping[str, str]
) -> Iterator[Finding]:
    environ = desktop_app_environ(environ)
    try:
        visible_binary = find_gemini(settings.cli_path, environ)
    except CliNotFound:
        visible_binary = None
    if visible_binary is None or (binary.is_official and not find_node(visible_binary, environ)):
        program = shlex.join(program_argv())
        missing = "this gemini" if visible_binary is None else "the Node that gemini needs"
        yield note(
            "desktop apps",
            f"their short PATH does not include {missing}; `install` configures its location",
            f"{program} install claude-desktop  # or claude-code, cursor, vscode",
        )


async def check_starts(
    binary: GeminiBinary, environ: Mapping[str, str], cwd: Path
) -> Finding | None:
    """Return a problem if the system cannot start the binary, otherwise None."""
    try:
        await _output_of([*binary.argv, "--version"], child_path(binary, environ), cwd)
    except OSError as error:
        return problem(
            "gemini CLI", f"{binary.path} cannot be run: {error.strerror}", UPGRADE_COMMAND
        )
    return None


async def check_node(binary: GeminiBinary, environ: Mapping[str, str], cwd: Path) -> Finding:
    """Check that there is a Node which is recent enough for the CLI."""
    program = find_node(binary, environ)
    if not program:
        return problem(
            "Node",
            "gemini needs Node, but there is no `node` on PATH",
            f"install Node {MIN_NODE_MAJOR} or newer, or add its folder to PATH",
        )
    try:
        version = await _output_of([program, "--version"], child_path(binary, environ), cwd)
    except OSError as error:
        version = f"not a working Node ({error.strerror})"
    match = re.match(r"v(\d+)\.", version)
    if not match or int(match[1]) < MIN_NODE_MAJOR:
        return problem(
            "Node",
            f"{program} is {version or 'not a working Node'}; "
            f"gemini needs {MIN_NODE_MAJOR} or newer",
            f"install Node {MIN_NODE_MAJOR} or newer, and put its folder ahead of "
            f"{Path(program).parent} on PATH",
        )
    return ok("Node", f"{version} at {program}")


async def _output_of(argv: list[str], path: str, cwd: Path) -> str:
    lines: list[bytes] = []
    await run(
        argv,
        stdin=b"",
        env={"PATH": path},
        cwd=cwd,
        on_line=lines.append,
        idle_timeout=lambda: 10.0,
        timeout=10.0,
    )
    return b"".join(lines).decode(errors="replace").strip()


def check_sign_in(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check how the CLI would sign in; only `--live` shows whether Google accepts it."""
    sign_ins = available_sign_ins(environ)
    yield _sign_in_finding(sign_ins, environ)
    settings_file = user_folder(environ) / "settings.json"
    selected_type = _selected_auth_type(settings_file)
    if selected_type == "oauth-personal" and sign_ins[0].auth_type == "gemini-api-key":
        yield note(
            "sign-in",
            f"{settings_file} still selects a personal login, which outranks the key when you run "
            "`gemini` yourself. This server uses the key",
            'set in that file: "security": {"auth": {"selectedType": "gemini-api-key"}}',
        )


def _sign_in_finding(sign_ins: list[SignIn], environ: Mapping[str, str]) -> Finding:
    first, last = sign_ins[0], sign_ins[-1]
    if first.auth_type == "gemini-api-key" and not first.env_file:
        if environ["GEMINI_API_KEY"].strip().lower() in PLACEHOLDERS | {""}:
            return problem("sign-in", "GEMINI_API_KEY is a placeholder, not a key", SET_KEY_COMMAND)
        return ok("sign-in", "GEMINI_API_KEY is set (not shown)")
    if first.auth_type == "vertex-ai":
        names = ("GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION")
        missing = [name for name in names if not environ.get(name)]
        if missing and not environ.get("GOOGLE_API_KEY"):
            fix = "; ".join(f"export {name}=..." for name in missing)
            return problem("sign-in", f"Vertex AI without {' and '.join(missing)}", fix)
        return ok("sign-in", "Vertex AI, configured with GOOGLE_* variables")
    if last.login_file and not _is_enterprise(environ):
        description = f"the only sign-in is the login in {last.login_file}"
        if last.env_file:
            description = f"{last.env_file}, then the login in {last.login_file}"
            return note("sign-in", f"{description}. {SIGN_IN_OPTIONS}", SET_KEY_COMMAND)
        return problem("sign-in", f"{description}. {SIGN_IN_OPTIONS}", SET_KEY_COMMAND)
    if last.login_file:
        return ok("sign-in", f"the login in {last.login_file}, with a Google Cloud project")
    if first.env_file and first.env_file.stat().st_size:
        return ok("sign-in", f"{first.env_file} (its content was not read)")
    return problem("sign-in", f"no sign-in was found. {SIGN_IN_OPTIONS}", SET_KEY_COMMAND)


def _is_enterprise(environ: Mapping[str, str]) -> bool:
    return bool(environ.get("GOOGLE_CLOUD_PROJECT"))


def _selected_auth_type(settings_file: Path) -> object:
    try:
        content = object_or_empty(json.loads(settings_file.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError):
        return None
    security = object_or_empty(content.get("security"))
    return object_or_empty(security.get("auth")).get("selectedType") or content.get(
        "selectedAuthType"
    )
