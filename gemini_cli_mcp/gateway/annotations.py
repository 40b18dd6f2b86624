"""Annotations for addresses that stand in the text and were really found; never any other."""

import re
from collections.abc import Sequence

from gemini_cli_mcp.json_values import JsonObject

_URL_END = r"""(?=[.,;:!?)\]}'"`*_~|]*(?:\Z|[\s<>]|[^\x00-\x7f]))"""
"""Behind an address: the end of a sentence or a link, and nothing that may belong to it."""


MAX_TEXT_CHARS = 1 << 20
"""Characters of an answer that is looked through; no model writes as much."""


def url_citations(text: str, hits: Sequence[JsonObject]) -> list[JsonObject]:
    """One for each place in the text, with its characters counted from its beginning."""
    titles = {str(hit["url"]): str(hit.get("title") or "") for hit in hits if hit.get("url")}
    if not titles or len(text) > MAX_TEXT_CHARS:
        return []
    longest_first = sorted(titles, key=len, reverse=True)
    addresses = re.compile(f"(?<![/=])(?:{'|'.join(map(re.escape, longest_first))}){_URL_END}")
    return [
        {
            "url": match[0],
            "title": titles[match[0]],
            "start_index": match.start(),
            "end_index": match.end(),
        }
        for match in addresses.finditer(text)
    ]
