"""Make untrusted text safe for transports, terminals and Markdown.

A lone surrogate crashes a stdio server of mcp 2.3.0 (its serializer raises inside the
transport), and control characters can manipulate terminals. Both are replaced here, once,
before text is output.
"""

import re

_UNSAFE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")

_INVISIBLE = re.compile(r"[\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]")
"""Invisible characters that change how a line is displayed."""


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
