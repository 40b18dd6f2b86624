"""Checks of the gemini CLI's sign-in."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

from gemini_cli_mcp.cli.doctor.findings import Finding, note, ok, problem
from gemini_cli_mcp.json_values import object_or_empty
from gemini_cli_mcp.providers.gemini.sign_ins import SignIn, available_sign_ins, user_folder

SIGN_IN_OPTIONS = (
    "Since June 2026 Google no longer accepts personal Google logins (free, AI Pro, AI Ultra) in "
    "the gemini CLI. Use an API key from Google AI Studio, Vertex AI, an enterprise Code Assist "
    "license, or the `agy` CLI (GEMINI_MCP_PROVIDERS=antigravity)"
)
SET_KEY_COMMAND = (
    "export GEMINI_API_KEY=...  # from aistudio.google.com/apikey; or put it into ~/.gemini/.env"
)
PLACEHOLDERS = {"...", "your key", "your-key", "any", "x"}


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
        text = settings_file.read_text(encoding="utf-8")
        content = object_or_empty(cast("object", json.loads(text)))
    except (OSError, ValueError, RecursionError):
        return None
    security = object_or_empty(content.get("security"))
    return object_or_empty(security.get("auth")).get("selectedType") or content.get(
        "selectedAuthType"
    )
