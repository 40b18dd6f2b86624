"""Make the hits of any engine safe and small: valid URLs, no duplicates, bounded fields."""

import re
from collections.abc import Sequence
from dataclasses import replace

from gemini_cli_mcp.research.evidence import canonical_url, url_host
from gemini_cli_mcp.sanitize import truncate_line
from gemini_cli_mcp.types import Hit

MAX_FIELD_CHARS = {"title": 300, "source": 100, "date": 40, "snippet": 500, "url": 2000}
MAX_HITS_CHARS = 24_000
"""Maximum characters of all hits together; hits beyond it are returned without snippets."""

_URL = re.compile(
    r"https?://[^\s\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufffd<>\"`]+",
    re.I,
)
_MARK_OR_OTHER = re.compile(
    r"(?P<other>(?<!`)(`+)(?!`).*?(?<!`)\2(?!`)|(?m:^) {0,3}\[\d{1,3}\]:)"
    r"|(?P<space>[ \t]?)\[(?P<prefix>(?:ref_)?)(?P<numbers>\d{1,3}(?:, ?\d{1,3})*)\](?!\()",
    re.DOTALL,
)
"""A mark, or what only looks like one: code, or the definition of a link."""
_HOST = re.compile(
    r"(?=.{1,253}\Z)(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9-]{1,63}|\[[0-9a-f:.]+\]",
    re.I,
)


def normalize_hits(hits: Sequence[Hit], max_hits: int) -> tuple[Hit, ...]:
    """Return up to `max_hits` distinct hits with valid web URLs and truncated fields."""
    unique_hits: dict[str, Hit] = {}
    for hit in hits:
        url, host = hit.url.strip(), url_host(hit.url.strip())
        if (
            not _URL.fullmatch(url)
            or not _HOST.fullmatch(host)
            or len(url) > MAX_FIELD_CHARS["url"]
        ):
            continue
        unique_hits.setdefault(
            canonical_url(url),
            Hit(
                truncate_line(hit.title, MAX_FIELD_CHARS["title"]) or host,
                url,
                truncate_line(hit.source, MAX_FIELD_CHARS["source"]) or host,
                truncate_line(hit.date, MAX_FIELD_CHARS["date"]) if hit.date else None,
                truncate_line(hit.snippet, MAX_FIELD_CHARS["snippet"]) if hit.snippet else None,
            ),
        )
    limited_hits: list[Hit] = []
    remaining_chars = MAX_HITS_CHARS
    for hit in list(unique_hits.values())[:max_hits]:
        remaining_chars -= _size(hit)
        # Without room, the hit stays and its snippet goes.
        limited_hits.append(hit if remaining_chars >= 0 else replace(hit, snippet=None))
    return tuple(limited_hits)


def renumber_marks(summary: str, found: Sequence[Hit], shown: Sequence[Hit]) -> str:
    """Make marks such as [2] or [ref_2], which count the hits found, count the hits shown.

    Marks of hits that are not shown are removed.
    """
    positions = {canonical_url(hit.url.strip()): number for number, hit in enumerate(shown, 1)}
    numbers = [positions.get(canonical_url(hit.url.strip())) for hit in found]

    def replace_mark(match: re.Match[str]) -> str:
        if match["other"]:
            return match[0]
        marks = [int(mark) for mark in match["numbers"].split(",")]
        if any(not 1 <= mark <= len(numbers) for mark in marks):
            return match[0]  # not a mark
        shown_marks = dict.fromkeys(number for mark in marks if (number := numbers[mark - 1]))
        text = ", ".join(map(str, shown_marks))
        return f"{match['space']}[{match['prefix']}{text}]" if shown_marks else ""

    return _MARK_OR_OTHER.sub(replace_mark, summary)


def summarize_hits(hits: Sequence[Hit], max_chars: int) -> str:
    """Build a summary from the hits when the engine returns none."""
    lines = (f"- {hit.title}: {hit.snippet}" if hit.snippet else f"- {hit.title}" for hit in hits)
    return "\n".join(lines)[:max_chars]


def _size(hit: Hit) -> int:
    return sum(len(text or "") for text in (hit.title, hit.url, hit.source, hit.date, hit.snippet))
