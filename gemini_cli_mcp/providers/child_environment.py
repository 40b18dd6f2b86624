"""Select the environment variables that a CLI inherits: an allowlist plus the user's additions.

An allowlist rather than a denylist, because the names of all secrets cannot be known.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from gemini_cli_mcp.sanitize import is_secret_name

WINDOWS_SYSTEM_VARIABLES = ("SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC", "PATHEXT")
"""Without SYSTEMROOT, Node aborts."""
ALLOWED_PATTERNS = (
    # System, user and shell
    *("PATH", "HOME", "USER", "LOGNAME", "USERNAME", "SHELL", "TERM", "TMPDIR", "XDG_*"),
    *("LANG", "LANGUAGE", "LC_*", "TZ", "TZDIR"),
    # The desktop keyring, where `agy` stores its credentials
    "DBUS_SESSION_BUS_ADDRESS",
    # Network
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_*", "NODE_EXTRA_CA_CERTS"),
    "NODE_USE_*",
    # Version managers: `node` may be one of their shims, which locates the real binary
    *("NVM_*", "FNM_*", "VOLTA_*", "ASDF_*", "MISE_*", "PNPM_*", "BUN_*"),
    # Windows
    *WINDOWS_SYSTEM_VARIABLES,
    *("OS", "TEMP", "TMP"),
    *("USERPROFILE", "USERDOMAIN", "HOMEDRIVE", "HOMEPATH", "COMPUTERNAME", "PUBLIC"),
    *("APPDATA", "LOCALAPPDATA", "PROGRAMDATA", "ALLUSERSPROFILE", "PROGRAMFILES*"),
    *("COMMONPROGRAMFILES*", "PROGRAMW6432", "NUMBER_OF_PROCESSORS", "PROCESSOR_*"),
    # The CLI's own variables, and those of the test stub
    *("GEMINI_*", "GOOGLE_*", "STUB_*"),
)
CLI_SECRETS = ("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_APPLICATION_CREDENTIALS")
"""Secrets that the CLI needs; other secret-looking names are dropped even if a pattern matches."""
DENIED_PATTERNS = ("GEMINI_MCP_*",)
"""This server's own variables: the CLI reads none of them, and some are secret."""


def allowed_variables(
    environ: Mapping[str, str], extra_names: Sequence[str] = ()
) -> dict[str, str]:
    """Return the variables that a CLI may inherit, including those in `extra_names`."""
    return {
        name: value
        for name, value in environ.items()
        if not _matches(name, DENIED_PATTERNS) and (_is_allowed(name) or name in extra_names)
    }


def system_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what every program needs to start, beside PATH."""
    return {
        name: value for name, value in environ.items() if _matches(name, WINDOWS_SYSTEM_VARIABLES)
    }


def _is_allowed(name: str) -> bool:
    return _matches(name, ALLOWED_PATTERNS) and (
        not is_secret_name(name) or name.upper() in CLI_SECRETS
    )


def _matches(name: str, patterns: Sequence[str]) -> bool:
    # Compare in upper case: proxy variables also exist in lower case, and Windows ignores case.
    return any(fnmatchcase(name.upper(), pattern) for pattern in patterns)
