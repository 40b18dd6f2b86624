"""Generate hostile reports from fragments, at random or as a product of all combinations.

The same seed yields the same reports on every Python version and machine.
"""

from collections.abc import Iterator
from itertools import product
from random import Random

from gemini_cli_mcp.providers.base import Reply
from gemini_cli_mcp.research.evidence import Ledger
from gemini_cli_mcp.types import RecordedSearch, Source
from tests.support.markdown_fragments import (
    ADDRESSES,
    BLOCKS,
    CHARACTERS,
    FORMS,
    REDIRECT,
    SEEN,
    SEEN_ADDRESSES,
    SEPARATORS,
    WORDS,
)
from tests.support.markdown_renderers import AllowedLinks

_SOURCES = (Source(SEEN, "Seen"), Source(REDIRECT, "nasa.gov"))
LEDGER = Ledger.from_replies(
    Reply("", None, "ledger", searches=(RecordedSearch("one", sources=_SOURCES),))
)
"""The sources that reports may cite."""
ALLOWED = AllowedLinks(("seen.example", "nasa.gov"), (REDIRECT,))
"""The same rules, stated independently of the product code."""

_MATRIX_FORMS = (
    "https://evil.com/a", "www.evil.com/a", "//evil.com/a", "evil.com", "<https://evil.com/a>",
    "[x](https://evil.com/a)", "![x](https://evil.com/a)", "[x][r]\n\n[r]: https://evil.com/a",
    "[^1]: https://evil.com/a", '<a href="//evil.com">x</a>', "xmpp:a@evil.com",
    "https://seen.example'@evil.com/x", "`[x](https://evil.com/a)`", "[r]: //evil.com",
)  # fmt: skip
"""One form of each kind, to combine with every separator before and after it."""


def reports(seed: int, count: int) -> Iterator[str]:
    """Yield `count` random reports of a few pieces each."""
    rng = Random(seed)
    for _ in range(count):
        yield _random_report(rng)


def matrix() -> Iterator[str]:
    """Yield every separator with every kind of link, and every form and address at least once."""
    for separator, form in product(SEPARATORS, _MATRIX_FORMS):
        yield f"{SEEN}{separator}{form}{separator}x"
    for template in (*FORMS, *BLOCKS):
        yield _fill(template, "https://evil.com/a", SEEN)
        yield _fill(template, "//evil.com", SEEN)
    for address in ADDRESSES:
        yield f"[x]({address}) <{address}> {address}"


def _random_report(rng: Random) -> str:
    parts: list[str] = []
    for _ in range(rng.choice((1, 2, 2, 3, 3, 4, 6))):
        parts += (_random_piece(rng), _random_separator(rng))
    text = "".join(parts[:-1])
    for _ in range(rng.choice((0, 0, 0, 1, 2, 4))):
        text = _mutate(rng, text)
    return text


def _random_piece(rng: Random) -> str:
    kind = rng.random()
    if kind < 0.15:
        return rng.choice(WORDS)
    if kind < 0.25:
        return rng.choice(SEEN_ADDRESSES)
    address = rng.choice(ADDRESSES if rng.random() < 0.6 else ADDRESSES[:6])
    if kind < 0.4:
        return address
    if kind < 0.5:
        address = _fill(rng.choice(FORMS), address, SEEN)
    template = rng.choice(FORMS if rng.random() < 0.6 else BLOCKS)
    return _fill(template, address, rng.choice(SEEN_ADDRESSES))


def _random_separator(rng: Random) -> str:
    return rng.choice(SEPARATORS if rng.random() < 0.5 else SEPARATORS[:5])


def _mutate(rng: Random, text: str) -> str:
    """Insert or delete a character, shuffle the lines, or indent them."""
    offset = rng.randrange(len(text) + 1)
    match rng.randrange(5):
        case 0:
            return text[:offset] + text[offset + 1 :]
        case 1:
            lines = text.split("\n")
            rng.shuffle(lines)
            return "\n".join(lines)
        case 2:
            indent = rng.choice(("> ", "    ", "- ", "  ", "\t", "1. ", "| "))
            return indent + text.replace("\n", f"\n{rng.choice((indent, '  ', ''))}")
        case _:
            return text[:offset] + rng.choice(CHARACTERS) + text[offset:]


def _fill(template: str, address: str, seen: str) -> str:
    return template.format(u=address, s=seen)
