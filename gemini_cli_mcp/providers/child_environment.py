"""Which variables of ours a CLI may see: those on a list, and those that the user adds.

A list of what is allowed, not of what is secret: nobody knows the names of all secrets.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from gemini_cli_mcp.redaction import is_secret_name

ALLOWED_PATTERNS = (
    # The system, the user and the shell
    *("PATH", "HOME", "USER", "LOGNAME", "USERNAME", "SHELL", "TERM", "TMPDIR", "XDG_*"),
    *("LANG", "LANGUAGE", "LC_*", "TZ", "TZDIR"),
    # The desktop's keyring, where `agy` has its sign-in
    "DBUS_SESSION_BUS_ADDRESS",
    # The network
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_*", "NODE_EXTRA_CA_CERTS"),
    "NODE_USE_*",
    # Version managers: `node` may be a program of theirs that looks for the real one
    *("NVM_*", "FNM_*", "VOLTA_*", "ASDF_*", "MISE_*", "PNPM_*", "BUN_*"),
    # Windows
    *("SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC", "PATHEXT", "OS", "TEMP", "TMP"),
    *("USERPROFILE", "USERDOMAIN", "HOMEDRIVE", "HOMEPATH", "COMPUTERNAME", "PUBLIC"),
    *("APPDATA", "LOCALAPPDATA", "PROGRAMDATA", "ALLUSERSPROFILE", "PROGRAMFILES*"),
    *("COMMONPROGRAMFILES*", "PROGRAMW6432", "NUMBER_OF_PROCESSORS", "PROCESSOR_*"),
    # The CLI's own, and the stub's
    *("GEMINI_*", "GOOGLE_*", "STUB_*"),
)
CLI_SECRETS = ("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_APPLICATION_CREDENTIALS")
"""The CLI's; whatever else looks secret is not for it, though its name may fit the list."""
DENIED_PATTERNS = ("GEMINI_MCP_*",)
"""Ours: the CLI reads none of them, and some are secret."""


def allowed_variables(
    environ: Mapping[str, str], extra_names: Sequence[str] = ()
) -> dict[str, str]:
    """The part of the environment that a CLI may see; `added` are further names."""
    return {
        name: value
        for name, value in environ.items()
        if not _matches(name, DENIED_PATTERNS) and (_is_allowed(name) or name in extra_names)
    }


def _is_allowed(name: str) -> bool:
    return _matches(name, ALLOWED_PATTERNS) and (
        not is_secret_name(name) or name.upper() in CLI_SECRETS
    )


def _matches(name: str, patterns: Sequence[str]) -> bool:
    # In capitals: proxies are set in small letters too, and Windows knows no difference.
    return any(fnmatchcase(name.upper(), pattern) for pattern in patterns)
