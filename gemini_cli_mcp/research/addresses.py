"""Web addresses in running text: where renderers may find one, and how far it goes.

Renderers differ, so whatever one of them makes a link of counts: any scheme with slashes, `www.`,
`//host`, `xmpp:`, and (by its top-level domain) a bare `name.com`. Measured on marked, remark,
markdown-it and cmark-gfm.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_SLASHES = r"/\\\uff0f\uff3c\u2044\u2215"
_DOTS = r".\u3002\uff0e\uff61\u2024"
# Each begins where it cannot have begun before, so that no text takes longer than its length.
_START = re.compile(
    rf"[:\uff1a\ufe55][{_SLASHES}]{{2,}}+"
    rf"|(?<![{_SLASHES}])[{_SLASHES}]{{2,}}+(?=[^\s/\\]*[{_DOTS}%\[]|localhost)"
    rf"|www[{_DOTS}](?=\S)|(?<![^\W_])www[{_DOTS}]"
    r"|xmpp:(?=[^\s@]{0,100}@)",
    re.IGNORECASE,
)
_SCHEME = re.compile(r"[a-z][a-z0-9+.\-]*\Z", re.IGNORECASE)
LONGEST_SCHEME = 32
# An address in prose ends at blanks, quotes, brackets and any CJK; letters of other scripts may
# belong to its host.
_REST = re.compile(
    r"(?:[A-Za-z0-9\-._~:/?#@!$&'()*+,;=%]|[\u00aa-\u1fff\u2c00-\u2dff\ua640-\uabff])*"
)
_ANOTHER = re.compile(r"(?<![=/?&])https?://", re.IGNORECASE)
"""Where the next one begins: behind a comma, say, but not in a query."""
_TRAILING = ".,;:!?'*_~"

_TOP_LEVEL = re.compile(r"(?<=\S)\.(xn--[a-z0-9-]+|[^\W\d_][^\W_]*)(?![^\W_]|-)", re.IGNORECASE)
_KNOWN_TOP_LEVEL = frozenset(
    [
        "biz",
        "com",
        "edu",
        "gov",
        "net",
        "org",
        "pro",
        "web",
        "xxx",
        "aero",
        "asia",
        "coop",
        "info",
        "museum",
        "name",
        "shop",
        "рф",
        "app",
        "blog",
        "click",
        "cloud",
        "club",
        "dev",
        "icu",
        "link",
        "live",
        "mov",
        "news",
        "online",
        "page",
        "site",
        "space",
        "store",
        "tech",
        "today",
        "top",
        "wiki",
        "world",
        "xyz",
        "zip",
    ]
)
"""What linkifiers link without a scheme, beside all of two letters, and names in common use."""
LONGEST_NAME = 253
_MAILBOX = re.compile(r"[\w.+-]@\Z", re.ASCII)
_WORD_BEFORE = re.compile(r"[^\s\x00-,/:-@\[-^`{-~\u2000-\u206f\u3000-\u303f\uff00-\uff0f]*\Z")
"""All that a linkifier may take for a part of the name."""


@dataclass(frozen=True)
class Address:
    """A part of a text that some renderer may take for an address."""

    start: int
    end: int
    url: str
    """As it stands there, with a scheme; `www.` and `//` mean https."""


def addresses(text: str) -> Iterator[Address]:
    """Every address that is written out."""
    at = 0
    while match := _START.search(text, at):
        begin = match.start()
        if match[0][0] in ":\uff1a\ufe55":
            scheme = _SCHEME.search(text, max(at, begin - LONGEST_SCHEME), begin)
            begin = scheme.start() if scheme else begin
        rest = _REST.match(text, match.end())
        another = _ANOTHER.search(text, match.end(), rest.end() if rest else match.end())
        end = another.start() if another else rest.end() if rest else match.end()
        end = max(_trimmed(text, begin, end), match.end())
        found = text[begin:end]
        if match[0][:3].lower() == "www":
            found = f"https://{found}"
        elif begin == match.start() and match[0][0] not in "xX":
            found = f"https:{found.lstrip(':')}"
        yield Address(begin, end, found)
        at = end


def _trimmed(text: str, start: int, end: int) -> int:
    """The end of an address without the punctuation of the sentence around it."""
    surplus = text.count(")", start, end) - text.count("(", start, end)
    while end > start:
        last = text[end - 1]
        if last == ")" and surplus > 0:
            surplus -= 1
        elif last not in _TRAILING:
            break
        end -= 1
    return end


def bare_domains(text: str) -> Iterator[tuple[int, str]]:
    """The dots before top-level domains in words without a scheme, and the whole name of each."""
    for match in _TOP_LEVEL.finditer(text):
        label = match[1].lower()
        two_letters = len(label) == 2 and label.isalpha()
        if two_letters or label.startswith("xn--") or label in _KNOWN_TOP_LEVEL:
            start = max(0, match.start() - LONGEST_NAME)
            before = _WORD_BEFORE.search(text, start, match.start())
            name = before[0] if before else ""
            if not _MAILBOX.search(text, start, match.start() - len(name)):
                yield match.start(), f"{name}{match[0]}"
