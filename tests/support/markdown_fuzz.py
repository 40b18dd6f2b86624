"""Hostile reports: pieces put together at random, or each with each.

The same seed makes the same reports on every Python and machine.
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

_FOUND = (Source(SEEN, "Seen"), Source(REDIRECT, "nasa.gov"))
LEDGER = Ledger.from_replies(
    Reply("", None, "ledger", searches=(RecordedSearch("one", sources=_FOUND),))
)
"""What the reports are held to."""
ALLOWED = AllowedLinks(("seen.example", "nasa.gov"), (REDIRECT,))
"""The same, said once more and without the product's own code."""

_MATRIX_FORMS = (
    "https://evil.com/a", "www.evil.com/a", "//evil.com/a", "evil.com", "<https://evil.com/a>",
    "[x](https://evil.com/a)", "![x](https://evil.com/a)", "[x][r]\n\n[r]: https://evil.com/a",
    "[^1]: https://evil.com/a", '<a href="//evil.com">x</a>', "xmpp:a@evil.com",
    "https://seen.example'@evil.com/x", "`[x](https://evil.com/a)`", "[r]: //evil.com",
)  # fmt: skip
"""One of each kind: with every separator before and behind."""


def reports(seed: int, count: int) -> Iterator[str]:
    """So many reports of a few pieces each."""
    random = Random(seed)
    for _ in range(count):
        yield _report(random)


def matrix() -> Iterator[str]:
    """Every separator with every kind of link, and every form and address at least once."""
    for separator, form in product(SEPARATORS, _MATRIX_FORMS):
        yield f"{SEEN}{separator}{form}{separator}x"
    for template in (*FORMS, *BLOCKS):
        yield _filled(template, "https://evil.com/a", SEEN)
        yield _filled(template, "//evil.com", SEEN)
    for address in ADDRESSES:
        yield f"[x]({address}) <{address}> {address}"


def _report(random: Random) -> str:
    parts: list[str] = []
    for _ in range(random.choice((1, 2, 2, 3, 3, 4, 6))):
        parts += (_piece(random), _separator(random))
    text = "".join(parts[:-1])
    for _ in range(random.choice((0, 0, 0, 1, 2, 4))):
        text = _changed(random, text)
    return text


def _piece(random: Random) -> str:
    kind = random.random()
    if kind < 0.15:
        return random.choice(WORDS)
    if kind < 0.25:
        return random.choice(SEEN_ADDRESSES)
    address = random.choice(ADDRESSES if random.random() < 0.6 else ADDRESSES[:6])
    if kind < 0.4:
        return address
    if kind < 0.5:
        address = _filled(random.choice(FORMS), address, SEEN)
    template = random.choice(FORMS if random.random() < 0.6 else BLOCKS)
    return _filled(template, address, random.choice(SEEN_ADDRESSES))


def _separator(random: Random) -> str:
    return random.choice(SEPARATORS if random.random() < 0.5 else SEPARATORS[:5])


def _changed(random: Random, text: str) -> str:
    """The text with a character more or less, or lines that stand elsewhere."""
    at = random.randrange(len(text) + 1)
    match random.randrange(5):
        case 0:
            return text[:at] + text[at + 1 :]
        case 1:
            lines = text.split("\n")
            random.shuffle(lines)
            return "\n".join(lines)
        case 2:
            indent = random.choice(("> ", "    ", "- ", "  ", "\t", "1. ", "| "))
            return indent + text.replace("\n", f"\n{random.choice((indent, '  ', ''))}")
        case _:
            return text[:at] + random.choice(CHARACTERS) + text[at:]


def _filled(template: str, address: str, seen: str) -> str:
    return template.format(u=address, s=seen)
