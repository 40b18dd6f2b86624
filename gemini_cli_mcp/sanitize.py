"""Text that leaves the house: nothing in it that breaks a transport or a terminal.

A lone surrogate kills a stdio server of mcp 2.3.0 (its serializer raises inside the
transport), and control characters drive terminals. Both are replaced here, once, at
the edges.
"""

import re

_UNSAFE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")

_INVISIBLE = re.compile(r"[\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]")
"""Characters that change how a line is read without being seen."""


def replace_unsafe_chars(text: str) -> str:
    """The text with lone surrogates and control characters replaced; line breaks and tabs stay."""
    return _UNSAFE.sub("\N{REPLACEMENT CHARACTER}", text)


def escape_markdown(text: str) -> str:
    """The text in one line of Markdown that shows it as it is."""
    return re.sub(r"([\[\]\\`*_<>#!|])", r"\\\1", " ".join(replace_unsafe_chars(text).split()))


def markdown_link(title: str, url: str) -> str:
    """A link that foreign titles and addresses cannot break out of."""
    words = escape_markdown(title)
    address = re.sub(r"[\s()<>]", lambda match: f"%{ord(match[0]):02X}", url)
    return f"[{words or 'link'}]({address})"


def truncate_line(text: str, limit: int) -> str:
    """The text in one line of at most so many characters, cut at a word where that is possible."""
    line = " ".join(_INVISIBLE.sub("", replace_unsafe_chars(text)).split())
    if len(line) <= limit:
        return line
    cut = line[: limit - 1]
    at_word = cut.rpartition(" ")[0]
    return (at_word if len(at_word) > limit // 2 else cut) + "\N{HORIZONTAL ELLIPSIS}"
