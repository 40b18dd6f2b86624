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
MAX_SCHEME_CHARS = 32
# An address in prose ends at blanks, quotes, brackets and any CJK; letters of other scripts may
# belong to its host.
_REST = re.compile(
    r"(?:[A-Za-z0-9\-._~:/?#@!$&'()*+,;=%]|[\u00aa-\u1fff\u2c00-\u2dff\ua640-\uabff])*"
)
_NEXT_URL = re.compile(r"(?<![=/?&])https?://", re.IGNORECASE)
"""Where the next one begins: behind a comma, say, but not in a query."""
_TRAILING = ".,;:!?'*_~"

_TOP_LEVEL_DOMAIN = re.compile(
    r"(?<=\S)\.(xn--[a-z0-9-]+|[^\W\d_][^\W_]*)(?![^\W_]|-)", re.IGNORECASE
)
_KNOWN_TOP_LEVEL_DOMAINS = frozenset(
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
MAX_HOST_CHARS = 253
_MAILBOX = re.compile(r"[\w.+-]@\Z", re.ASCII)
_WORD_BEFORE = re.compile(r"[^\s\x00-,/:-@\[-^`{-~\u2000-\u206f\u3000-\u303f\uff00-\uff0f]*\Z")
"""All that a linkifier may take for a part of the name."""


@dataclass(frozen=True)
class TextUrl:
    """A part of a text that some renderer may take for an address."""

    start: int
    end: int
    url: str
    """As it stands there, with a scheme; `www.` and `//` mean https."""


def find_urls(text: str) -> Iterator[TextUrl]:
    """Every address that is written out."""
    position = 0
    while match := _START.search(text, position):
        start = match.start()
        if match[0][0] in ":\uff1a\ufe55":
            scheme = _SCHEME.search(text, max(position, start - MAX_SCHEME_CHARS), start)
            start = scheme.start() if scheme else start
        rest = _REST.match(text, match.end())
        another = _NEXT_URL.search(text, match.end(), rest.end() if rest else match.end())
        end = another.start() if another else rest.end() if rest else match.end()
        end = max(_trim_trailing(text, start, end), match.end())
        url = text[start:end]
        if match[0][:3].lower() == "www":
            url = f"https://{url}"
        elif start == match.start() and match[0][0] not in "xX":
            url = f"https:{url.lstrip(':')}"
        yield TextUrl(start, end, url)
        position = end


def _trim_trailing(text: str, start: int, end: int) -> int:
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


def find_bare_domains(text: str) -> Iterator[tuple[int, str]]:
    """The dots before top-level domains in words without a scheme, and the whole name of each."""
    for match in _TOP_LEVEL_DOMAIN.finditer(text):
        label = match[1].lower()
        two_letters = len(label) == 2 and label.isalpha()
        if two_letters or label.startswith("xn--") or label in _KNOWN_TOP_LEVEL_DOMAINS:
            start = max(0, match.start() - MAX_HOST_CHARS)
            before = _WORD_BEFORE.search(text, start, match.start())
            name = before[0] if before else ""
            if not _MAILBOX.search(text, start, match.start() - len(name)):
                yield match.start(), f"{name}{match[0]}"
