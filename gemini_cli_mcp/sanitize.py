"""Make text safe to output: unsafe characters, Markdown, and secrets.

A lone surrogate crashes a stdio server of mcp 2.3.0 (its serializer raises inside the
transport), and control characters can manipulate terminals. Secrets are known values from the
environment, or recognised by their form; a known value is found even if it is split by line
breaks, terminal escape sequences or invisible characters.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import cast
from urllib.parse import quote, unquote

REDACTED = "[redacted]"
MIN_SECRET_CHARS = 6
"""Minimum characters of a value to redact; shorter ones occur inside ordinary words."""
MIN_WORD_CHARS = 16
"""Same for letters only: `postgres` may be a password, but it is also an ordinary word."""
MIN_NUMBER_DIGITS = 12
"""Same for digits only: variables with `TOKENS` in their name may hold a budget or a limit."""

_UNSAFE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
_INVISIBLE = re.compile(r"[\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]")
"""Invisible characters that change how a line is displayed."""

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
_URL_PASSWORD = re.compile(r"://[^/\s:@]*:([^/\s]+)@")

_SEPARATOR = (
    # Terminal escape sequences, also if their first character has been replaced
    r"(?:(?:\x1b|\ufffd|\x9b)\[[0-?]*[ -/]*[@-~]|[\x1b\ufffd](?:[()][0-9A-Za-z]|[0-9=>])"
    r"|[\x1b\ufffd]\][^\x07\x1b\ufffd]{0,200}(?:[\x07\ufffd]|\x1b\\)"
    # Whitespace and invisible characters
    r"|[\s\x00-\x1f\x7f-\x9f\u00ad\u034f\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2069\u3164"
    r"\ufe00-\ufe0f\ufeff\ufffd\U000e0000-\U000e007f]"
    # The same, escaped in JSON; and Markdown escapes
    r"|\\(?:[nrte]|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|0?33)(?:\[[0-9;?]*m)?|\\(?=[!-/:-@\[-`{-~]))"
)
"""Matches anything that may split a secret."""
_SEPARATORS = re.compile(f"{_SEPARATOR}+")

_SECRET_FORMAT = re.compile(
    r"""(?x)
    AIza[\w-]{20,}                                     # Google API keys
    | AQ\.[\w-]{20,}                                   # Google API keys, newer form
    | ya29\.[\w.-]+ | 1//[\w-]{20,}                    # OAuth access and refresh tokens
    | (?<![\w-])eyJ[\w-]{10,4000}\.[\w-]{10,4000}\.[\w-]{0,4000}  # JSON web tokens
    | -----BEGIN[ ][\w ]*PRIVATE[ ]KEY-----[\s\S]*?(?:-----END[ ][\w ]*KEY-----|\Z)
    | (?i:(?<=bearer[ ])|(?<=basic[ ]))[\w.~+/=-]{6,}
    | (?<=://)[^/\s:@]+:[^/\s@]+(?=@)                  # user:password@ in a URL
    | (?i:(?<=[?&]key=)|(?<=[?&]access_token=))[^&\s"']+
    """
)
_NAMED_SECRET = re.compile(
    r"(?i)((?:\b|_)(?:(?:api|access|private|secret)[_-]?key|token|secret|password|credentials)"
    r"[\"']?\s*[=:]\s*[\"']?)(?!\[redacted\])([^\s\"',;}]{6,})"
)


def is_secret_name(name: str) -> bool:
    """Return whether a variable with this name is likely to hold a secret."""
    upper = name.upper()
    if upper in _NOT_SECRET:
        return False
    return bool(_SECRET_PARTS & set(upper.split("_"))) or any(
        word in upper for word in _SECRET_WORDS
    )


def has_url_password(value: str) -> bool:
    """Return whether a value contains a URL with a password, such as that of a proxy."""
    return bool(_URL_PASSWORD.search(value))


def secret_values(environ: Mapping[str, str], names: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the values to redact: of secret variables, of `names`, and passwords in URLs."""
    secret_names = set(names)
    values: set[str] = set()
    for name, value in environ.items():
        if name in secret_names or is_secret_name(name):
            values.update(_split_list(value.strip()))
        values.update(_URL_PASSWORD.findall(value))
    candidates = (value for value in values if _should_redact(value))
    return tuple(sorted(candidates, key=lambda value: (-len(value), value)))


def _split_list(value: str) -> Iterator[str]:
    """Yield the value and, if it is a list of `token` or `name=token`, each token."""
    yield value
    if "," in value:
        for item in value.split(","):
            yield item.strip()
            yield item.partition("=")[2].strip()
    elif "=" in value.rstrip("="):
        yield value.partition("=")[2].strip()


def _should_redact(value: str) -> bool:
    min_length = MIN_NUMBER_DIGITS if value.isdigit() else MIN_SECRET_CHARS
    if value.isascii() and value.isalpha():
        min_length = MIN_WORD_CHARS
    # The path of a file that contains a secret is not secret, and it helps with debugging.
    is_file = os.path.isabs(value) and os.path.exists(value)  # noqa: PTH110, PTH117 - Path.exists may raise
    return len(value) >= min_length and not is_file


def redact_known(text: str, secrets: Sequence[str]) -> str:
    """Replace these secrets, even if they are split."""
    if not secrets:
        return text
    spellings, pattern = _compile_secrets(tuple(secrets))
    compact = _SEPARATORS.sub("", text)  # fast path: hardly any text contains a secret
    if not any(spelling in compact for spelling in spellings):
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
    longest_first = sorted(
        filter(None, (_SEPARATORS.sub("", spelling) for spelling in spellings)), key=len
    )[::-1]
    alternatives = (f"{_SEPARATOR}*".join(map(re.escape, spelling)) for spelling in longest_first)
    return tuple(longest_first), re.compile("|".join(alternatives) or r"(?!)")


def redact(text: str, secrets: Sequence[str] = ()) -> str:
    """Replace these secrets and anything that looks like a key, token or password."""
    text = redact_known(text, secrets)
    return _NAMED_SECRET.sub(rf"\1{REDACTED}", _SECRET_FORMAT.sub(REDACTED, text))


def error_excerpt(message: str, secrets: Sequence[str] = ()) -> str:
    """Return the start of a foreign error message, without secrets and unsafe characters."""
    return replace_unsafe_chars(redact(message[:2000], secrets))[:300]


def sanitize_json(value: object, secrets: Sequence[str]) -> object:
    """Redact known secrets in a JSON value, and replace characters that break a transport."""
    if isinstance(value, str):
        return replace_unsafe_chars(redact_known(value, secrets))
    if isinstance(value, dict):
        items = cast("dict[object, object]", value).items()
        # Field names are our own; redacting one that equals a secret would break the result.
        return {replace_unsafe_chars(str(key)): sanitize_json(item, secrets) for key, item in items}
    if isinstance(value, list):
        return [sanitize_json(item, secrets) for item in cast("list[object]", value)]
    return value


def replace_unsafe_chars(text: str) -> str:
    """Replace lone surrogates and control characters, except line breaks and tabs."""
    return _UNSAFE.sub("\N{REPLACEMENT CHARACTER}", text)


def escape_markdown(text: str) -> str:
    """Escape text for literal display on a single line of Markdown."""
    return re.sub(r"([\[\]\\`*_<>#!|])", r"\\\1", " ".join(replace_unsafe_chars(text).split()))


def markdown_link(title: str, url: str) -> str:
    """Return a Markdown link that an untrusted title or URL cannot break out of."""
    label = escape_markdown(title)
    target = re.sub(r"[\s()<>]", lambda match: f"%{ord(match[0]):02X}", url)
    return f"[{label or 'link'}]({target})"


def truncate_line(text: str, limit: int) -> str:
    """Shorten text to one line of at most `limit` characters, at a word boundary if possible."""
    line = " ".join(_INVISIBLE.sub("", replace_unsafe_chars(text)).split())
    if len(line) <= limit:
        return line
    cut = line[: limit - 1]
    whole_words = cut.rpartition(" ")[0]
    return (whole_words if len(whole_words) > limit // 2 else cut) + "\N{HORIZONTAL ELLIPSIS}"
