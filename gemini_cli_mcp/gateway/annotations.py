"""URL citations for the URLs in an answer that a search actually returned, and no others."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from gemini_cli_mcp.types import Hit

_URL_END = r"""(?=[.,;:!?)\]}'"`*_~|]*(?:\Z|[\s<>]|[^\x00-\x7f]))"""
"""Matches after a URL: the end of a sentence or link, but nothing that may be part of the URL."""


MAX_TEXT_CHARS = 1 << 20
"""Maximum characters of an answer to scan; no model writes this much."""


@dataclass(frozen=True)
class UrlCitation:
    """An occurrence of a hit's URL, with character offsets from the start of the text."""

    url: str
    title: str
    start_index: int
    end_index: int

    def as_json(self) -> dict[str, str | int]:
        """Return the fields that annotations have in both APIs, besides their type."""
        return asdict(self)


def url_citations(text: str, hits: Sequence[Hit]) -> list[UrlCitation]:
    """Return one citation per occurrence."""
    titles = {hit.url: hit.title for hit in hits if hit.url}
    if not titles or len(text) > MAX_TEXT_CHARS:
        return []
    longest_first = sorted(titles, key=len, reverse=True)
    url_pattern = re.compile(f"(?<![/=])(?:{'|'.join(map(re.escape, longest_first))}){_URL_END}")
    return [
        UrlCitation(match[0], titles[match[0]], match.start(), match.end())
        for match in url_pattern.finditer(text)
    ]
