"""Find the URLs in running text that any renderer would turn into links.

Renderers differ, so anything that one of them links counts: any scheme with slashes, `www.`,
`//host`, `xmpp:`, and (recognized by its top-level domain) a bare `name.com`. Measured on marked,
remark, markdown-it and cmark-gfm.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_SLASHES = r"/\\\uff0f\uff3c\u2044\u2215"
_DOTS = r".\u3002\uff0e\uff61\u2024"
# No alternative can start inside a run that it could have started earlier: the scan is linear.
_URL_START = re.compile(
    rf"[:\uff1a\ufe55][{_SLASHES}]{{2,}}+"
    rf"|(?<![{_SLASHES}])[{_SLASHES}]{{2,}}+(?=[^\s/\\]*[{_DOTS}%\[]|localhost)"
    rf"|www[{_DOTS}](?=\S)|(?<![^\W_])www[{_DOTS}]"
    r"|xmpp:(?=[^\s@]{0,100}@)",
    re.IGNORECASE,
)
_SCHEME = re.compile(r"[a-z][a-z0-9+.\-]*\Z", re.IGNORECASE)
MAX_SCHEME_CHARS = 32
# A URL in prose ends at whitespace, quotes, brackets and any CJK character; letters of other
# scripts may belong to its host.
_URL_CHARS = re.compile(
    r"(?:[A-Za-z0-9\-._~:/?#@!$&'()*+,;=%]|[\u00aa-\u1fff\u2c00-\u2dff\ua640-\uabff])*"
)
_NEXT_URL = re.compile(r"(?<![=/?&])https?://", re.IGNORECASE)
"""The start of the next URL: after a comma, for example, but not in a query string."""
_TRAILING_PUNCTUATION = ".,;:!?'*_~"

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
"""Domains that linkifiers link without a scheme, and others in common use; every two-letter domain
counts as well."""
MAX_HOST_CHARS = 253
_MAILBOX = re.compile(r"[\w.+-]@\Z", re.ASCII)
_HOST_PREFIX = re.compile(r"[^\s\x00-,/:-@\[-^`{-~\u2000-\u206f\u3000-\u303f\uff00-\uff0f]*\Z")
"""Everything that a linkifier may treat as part of the host name."""


@dataclass(frozen=True)
class TextUrl:
    """A span of text that some renderer may treat as a URL."""

    start: int
    end: int
    url: str
    """The URL as written, with a scheme; `www.` and `//` imply https."""


def find_urls(text: str) -> Iterator[TextUrl]:
    """Yield every URL that is written out; see `find_bare_domains` for the others."""
    position = 0
    while match := _URL_START.search(text, position):
        start = match.start()
        if match[0][0] in ":\uff1a\ufe55":
            scheme = _SCHEME.search(text, max(position, start - MAX_SCHEME_CHARS), start)
            start = scheme.start() if scheme else start
        rest = _URL_CHARS.match(text, match.end())
        next_url = _NEXT_URL.search(text, match.end(), rest.end() if rest else match.end())
        end = next_url.start() if next_url else rest.end() if rest else match.end()
        end = max(_trim_trailing(text, start, end), match.end())
        url = text[start:end]
        if match[0][:3].lower() == "www":
            url = f"https://{url}"
        elif start == match.start() and match[0][0] not in "xX":
            url = f"https:{url.lstrip(':')}"
        yield TextUrl(start, end, url)
        position = end


def _trim_trailing(text: str, start: int, end: int) -> int:
    """Return the end of a URL without the punctuation of the surrounding sentence."""
    unmatched = text.count(")", start, end) - text.count("(", start, end)
    while end > start:
        char = text[end - 1]
        if char == ")" and unmatched > 0:
            unmatched -= 1
        elif char not in _TRAILING_PUNCTUATION:
            break
        end -= 1
    return end


def find_bare_domains(text: str) -> Iterator[tuple[int, str]]:
    """Yield the offset of the dot before each top-level domain, and the whole host name."""
    for match in _TOP_LEVEL_DOMAIN.finditer(text):
        label = match[1].lower()
        is_country_code = len(label) == 2 and label.isalpha()
        if is_country_code or label.startswith("xn--") or label in _KNOWN_TOP_LEVEL_DOMAINS:
            start = max(0, match.start() - MAX_HOST_CHARS)
            prefix = _HOST_PREFIX.search(text, start, match.start())
            name = prefix[0] if prefix else ""
            if not _MAILBOX.search(text, start, match.start() - len(name)):
                yield match.start(), f"{name}{match[0]}"
