"""URL citations for the URLs in an answer that a search actually returned, and no others."""

import re
from collections.abc import Sequence

from gemini_cli_mcp.json_values import JsonObject

_URL_END = r"""(?=[.,;:!?)\]}'"`*_~|]*(?:\Z|[\s<>]|[^\x00-\x7f]))"""
"""Matches after a URL: the end of a sentence or link, but nothing that may be part of the URL."""


MAX_TEXT_CHARS = 1 << 20
"""Maximum characters of an answer to scan; no model writes this much."""


def url_citations(text: str, hits: Sequence[JsonObject]) -> list[JsonObject]:
    """Return one citation per occurrence, with character offsets from the start of the text."""
    titles = {str(hit["url"]): str(hit.get("title") or "") for hit in hits if hit.get("url")}
    if not titles or len(text) > MAX_TEXT_CHARS:
        return []
    longest_first = sorted(titles, key=len, reverse=True)
    url_pattern = re.compile(f"(?<![/=])(?:{'|'.join(map(re.escape, longest_first))}){_URL_END}")
    return [
        {
            "url": match[0],
            "title": titles[match[0]],
            "start_index": match.start(),
            "end_index": match.end(),
        }
        for match in url_pattern.finditer(text)
    ]
