"""Secrets stay inside: their values, and what looks like one, are replaced in whatever leaves us.

The values come from the environment. A value is found even where it was split by line breaks,
by the codes that colour terminals, or by characters that are not seen.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import cast
from urllib.parse import quote, unquote

from gemini_cli_mcp.sanitize import replace_unsafe_chars

REDACTED = "[redacted]"
MIN_SECRET_CHARS = 6
"""Characters of a value that is looked for; shorter ones stand in ordinary words."""
MIN_WORD_CHARS = 16
"""The same for what may be an ordinary word: `postgres` is a password, and half of a report."""
MIN_NUMBER_DIGITS = 12
"""The same for numbers: budgets and limits have variables with `TOKENS` in their names too."""

_SECRET_PARTS = frozenset(
    {
        *(
            "KEY",
            "KEYS",
            "PASS",
            "PWD",
            "PW",
            "PAT",
            "PSK",
            "CREDS",
            "COOKIE",
            "DSN",
            "JWT",
            "AUTH",
        ),
        *("PGPASS", "SSHPASS", "BINDPW", "WEBHOOK"),
    }
)
_SECRET_WORDS = ("PASSWORD", "PASSWD", "PASSPHRASE", "SECRET", "TOKEN", "CREDENTIAL", "APIKEY")
_NOT_SECRET = frozenset({"PWD", "OLDPWD", "GEMINI_MCP_PASS_ENV"})
_URL_PASSWORD = re.compile(r"://[^/\s:@]*:([^/\s@]+)@")

_SPLIT = (
    # Terminal codes, also after their first character was replaced
    r"(?:(?:\x1b|\ufffd|\x9b)\[[0-?]*[ -/]*[@-~]|[\x1b\ufffd](?:[()][0-9A-Za-z]|[0-9=>])"
    r"|[\x1b\ufffd]\][^\x07\x1b\ufffd]{0,200}(?:[\x07\ufffd]|\x1b\\)"
    # Blanks, and what is not seen
    r"|[\s\x00-\x1f\x7f-\x9f\u00ad\u034f\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2069\u3164"
    r"\ufe00-\ufe0f\ufeff\ufffd\U000e0000-\U000e007f]"
    # The same as they are escaped in JSON, and escapes of Markdown
    r"|\\(?:[nrte]|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|0?33)(?:\[[0-9;?]*m)?|\\(?=[!-/:-@\[-`{-~]))"
)
"""What may stand inside a secret that was split."""
_SPLITS = re.compile(f"{_SPLIT}+")

_LOOKS_SECRET = re.compile(
    r"""(?x)
    AIza[\w-]{20,}                                     # Google API keys
    | AQ\.[\w-]{20,}                                   # Google API keys, newer form
    | ya29\.[\w.-]+ | 1//[\w-]{20,}                    # OAuth access and refresh tokens
    | (?<![\w-])eyJ[\w-]{10,4000}\.[\w-]{10,4000}\.[\w-]{0,4000}  # JSON web tokens
    | -----BEGIN[ ][\w ]*PRIVATE[ ]KEY-----[\s\S]*?(?:-----END[ ][\w ]*KEY-----|\Z)
    | (?i:(?<=bearer[ ])|(?<=basic[ ]))[\w.~+/=-]{6,}
    | (?<=://)[^/\s:@]+:[^/\s@]+(?=@)                  # user:password@ in an address
    | (?i:(?<=[?&]key=)|(?<=[?&]access_token=))[^&\s"']+
    """
)
_NAMED_SECRET = re.compile(
    r"(?i)((?:\b|_)(?:(?:api|access|private|secret)[_-]?key|token|secret|password|credentials)"
    r"[\"']?\s*[=:]\s*[\"']?)(?!\[redacted\])([^\s\"',;}]{6,})"
)


def is_secret_name(name: str) -> bool:
    """Whether a variable of this name holds what nobody else should see."""
    upper = name.upper()
    if upper in _NOT_SECRET:
        return False
    return bool(_SECRET_PARTS & set(upper.split("_"))) or any(
        word in upper for word in _SECRET_WORDS
    )


def secret_values(environ: Mapping[str, str], names: Iterable[str] = ()) -> tuple[str, ...]:
    """The values that must not leave us: of secret variables, of `names`, and inside addresses."""
    named = set(names)
    values: set[str] = set()
    for name, value in environ.items():
        if name in named or is_secret_name(name):
            values.update(_single_values(value.strip()))
        values.update(_URL_PASSWORD.findall(value))
    kept = (value for value in values if _is_worth_hiding(value))
    return tuple(sorted(kept, key=lambda value: (-len(value), value)))


def _single_values(value: str) -> Iterator[str]:
    """The value, and of a list of `token` and `name=token` each token."""
    yield value
    if "," in value:
        for item in value.split(","):
            yield item.strip()
            yield item.partition("=")[2].strip()
    elif "=" in value.rstrip("="):
        yield value.partition("=")[2].strip()


def _is_worth_hiding(value: str) -> bool:
    shortest = MIN_NUMBER_DIGITS if value.isdigit() else MIN_SECRET_CHARS
    if value.isascii() and value.isalpha():
        shortest = MIN_WORD_CHARS
    # A file that holds a secret is none itself, and its path helps whoever looks for a mistake.
    is_file = os.path.isabs(value) and os.path.exists(value)  # noqa: PTH110, PTH117 - Path's raises
    return len(value) >= shortest and not is_file


def redact_known(text: str, secrets: Sequence[str]) -> str:
    """The text without these secrets, however they were split."""
    if not secrets:
        return text
    joined, pattern = _compile_secrets(tuple(secrets))
    together = _SPLITS.sub("", text)  # quick: nearly no text has any of them
    if not any(secret in together for secret in joined):
        return text
    return pattern.sub(REDACTED, text)


@lru_cache(maxsize=32)
def _compile_secrets(secrets: tuple[str, ...]) -> tuple[tuple[str, ...], "re.Pattern[str]"]:
    spellings = {
        spelling
        for secret in secrets
        if secret
        for spelling in (
            *(secret, quote(secret, safe=""), unquote(secret), json.dumps(secret)[1:-1]),
            secret.replace("<", "&lt;"),
        )
    }
    joined = sorted(filter(None, (_SPLITS.sub("", each) for each in spellings)), key=len)[::-1]
    alternatives = (f"{_SPLIT}*".join(map(re.escape, secret)) for secret in joined)
    return tuple(joined), re.compile("|".join(alternatives) or r"(?!)")


def redact(text: str, secrets: Sequence[str] = ()) -> str:
    """The text without these secrets and anything that looks like a key, token or password."""
    text = redact_known(text, secrets)
    return _NAMED_SECRET.sub(rf"\1{REDACTED}", _LOOKS_SECRET.sub(REDACTED, text))


def sanitize_json(value: object, secrets: Sequence[str]) -> object:
    """A JSON value as it may leave: no known secret, and nothing that breaks a transport."""
    if isinstance(value, str):
        return replace_unsafe_chars(redact_known(value, secrets))
    if isinstance(value, dict):
        items = cast("dict[object, object]", value).items()
        # Names are ours: one that equals a secret would make the result unreadable.
        return {replace_unsafe_chars(str(key)): sanitize_json(item, secrets) for key, item in items}
    if isinstance(value, list):
        return [sanitize_json(item, secrets) for item in cast("list[object]", value)]
    return value
