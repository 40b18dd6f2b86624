"""Checks of the gemini CLI's sign-in that need no network: which one a search would use."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

from gemini_cli_mcp.cli.doctor.findings import Finding, note, problem
from gemini_cli_mcp.json_values import object_or_empty
from gemini_cli_mcp.platforms import shell_commands
from gemini_cli_mcp.providers.gemini.sign_ins import SignIn, available_sign_ins, user_folder

SIGN_IN_OPTIONS = (
    "Use an API key from Google AI Studio, Vertex AI, an enterprise Code Assist licence, or the "
    "`agy` CLI (GEMINI_MCP_PROVIDERS=antigravity). Google no longer accepts personal logins "
    "(free, AI Pro, AI Ultra) in the gemini CLI since June 2026."
)
PLACEHOLDERS = {"...", "your key", "your-key", ""}
GATEWAY_KEYS = {"any", "x"}
"""Values that a gateway with its own base URL may accept; for Google they are placeholders."""


def set_key_command() -> str:
    command = shell_commands.set_variable("GEMINI_API_KEY")
    return f"{command}  # from aistudio.google.com/apikey; or put it into ~/.gemini/.env"


def describe_sign_in(environ: Mapping[str, str]) -> str:
    """Return what a search would sign in with."""
    first, last = (available_sign_ins(environ)[index] for index in (0, -1))
    if first.auth_type == "gemini-api-key" and not first.env_file:
        return "GEMINI_API_KEY (not shown)"
    if first.auth_type == "vertex-ai":
        return "Vertex AI, configured with GOOGLE_* variables"
    files = [file for file in (first.env_file, last.login_file) if file]
    return ", then ".join(map(str, files)) or "no key and no login"


def check_key(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a problem if GEMINI_API_KEY cannot be a key."""
    key = environ["GEMINI_API_KEY"].strip()
    has_gateway = bool(environ.get("GOOGLE_GEMINI_BASE_URL"))
    placeholders = PLACEHOLDERS if has_gateway else PLACEHOLDERS | GATEWAY_KEYS
    if key.lower() in placeholders:
        yield problem("sign-in", "GEMINI_API_KEY is a placeholder, not a key", set_key_command())
    elif " " in key or not (key.isascii() and key.isprintable()):
        message = "GEMINI_API_KEY contains a space or another character that no key has"
        yield problem("sign-in", message, set_key_command())


def check_sign_in(environ: Mapping[str, str], *, is_official: bool) -> Iterator[Finding]:
    """Yield what is wrong with the sign-in; a wrapper may have a sign-in of its own."""
    sign_ins = available_sign_ins(environ)
    first = sign_ins[0]
    is_key = first.auth_type == "gemini-api-key" and not first.env_file
    if is_key:
        yield from check_key(environ)
    elif first.auth_type == "vertex-ai":
        names = ("GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION")
        missing = [name for name in names if not environ.get(name)]
        if missing and not environ.get("GOOGLE_API_KEY"):
            fix = "; ".join(shell_commands.set_variable(name) for name in missing)
            yield problem("sign-in", f"Vertex AI without {' and '.join(missing)}", fix)
    elif sign_ins == [SignIn(None)] and is_official:
        message = f"no sign-in was found. {SIGN_IN_OPTIONS}"
        yield problem("sign-in", message, set_key_command())
    settings_file = user_folder(environ) / "settings.json"
    if is_key and _selected_auth_type(settings_file) == "oauth-personal":
        yield note(
            "sign-in",
            f"{settings_file} still selects a personal login, which outranks the key when you run "
            "`gemini` yourself. This server uses the key",
            'set in that file: "security": {"auth": {"selectedType": "gemini-api-key"}}',
            is_command=False,
        )


def _selected_auth_type(settings_file: Path) -> object:
    try:
        text = settings_file.read_text(encoding="utf-8")
        content = object_or_empty(cast("object", json.loads(text)))
    except (OSError, ValueError, RecursionError):
        return None
    security = object_or_empty(content.get("security"))
    return object_or_empty(security.get("auth")).get("selectedType") or content.get(
        "selectedAuthType"
    )
