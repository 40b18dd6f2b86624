"""Parse the grounding metadata of Gemini API responses, in the API's own JSON spelling.

The metadata is reliable evidence: it is separate from the text, so the model cannot forge it.
"""

import bisect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gemini_cli_mcp.json_values import JsonValue
from gemini_cli_mcp.types import GroundingSupport, RecordedFetch, RecordedSearch, Source


@dataclass(frozen=True)
class _Support:
    """A passage of the answer and the sources that support it."""

    text: str
    end: int | None
    """Byte offset in the joined text at which the passage ends, if known."""
    chunks: tuple[int, ...]
    """Keys of the sources."""


@dataclass(frozen=True)
class GroundedCandidate:
    """One answer of the API, with what it is based on."""

    texts: tuple[str, ...] = ()
    """The text of each part; empty for a thought."""
    thoughts: str = ""
    finish_reason: str = ""
    sources: Mapping[int, Source] = field(default_factory=dict[int, Source])
    """The web pages among the grounding chunks, keyed by chunk index."""
    google_queries: tuple[str, ...] = ()
    fetches: tuple[RecordedFetch, ...] = ()
    """The pages that the API retrieved or failed to retrieve."""
    search_suggestions_html: str | None = None
    _supports: tuple[_Support, ...] = ()

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def citations(self) -> dict[int, dict[int, Source]]:
        """Return the sources cited at each byte offset of the text, numbered from 1."""
        numbers = {chunk: number for number, chunk in enumerate(self.sources, 1)}
        cited: dict[int, dict[int, Source]] = {}
        for support in self._supports:
            if support.end is not None:
                cited.setdefault(support.end, {}).update(
                    (numbers[chunk], self.sources[chunk]) for chunk in support.chunks
                )
        return cited

    def recorded_search(self, query: str = "") -> RecordedSearch:
        """Return the search behind the answer; without sources it found nothing."""
        supports = (
            GroundingSupport(
                support.text, tuple(self.sources[chunk].url for chunk in support.chunks)
            )
            for support in self._supports
            if support.chunks
        )
        return RecordedSearch(
            query,
            None,
            tuple(self.sources.values()),
            insert_marks(self.text, number_marks(self)) if self.sources else "",
            self.google_queries,
            tuple(supports),
        )


def number_marks(candidate: GroundedCandidate) -> dict[int, str]:
    """Return the marks such as `[1][2]` of a candidate's citations, by byte offset."""
    return {
        end: "".join(f"[{number}]" for number in cited)
        for end, cited in candidate.citations().items()
    }


def insert_marks(
    text: str, marks: Mapping[int, str], is_valid: Callable[[str], bool] | None = None
) -> str:
    """Insert each mark at its byte offset, never inside a character.

    With `is_valid`, a mark that would make the text invalid is skipped.
    """
    raw = text.encode()
    boundaries = [index for index, byte in enumerate(raw) if byte & 0xC0 != 0x80] + [len(raw)]
    for end in sorted(marks, reverse=True):
        if not 0 < end <= len(raw):
            continue
        offset = boundaries[bisect.bisect_left(boundaries, end)]
        updated = raw[:offset] + marks[end].encode() + raw[offset:]
        if is_valid is None or is_valid(updated.decode(errors="replace")):
            raw = updated
    return raw.decode(errors="replace")


def parse_candidate(response: JsonValue) -> GroundedCandidate | None:
    """Parse the first candidate of a response, the only one; None if there is none."""
    match response:
        case {"candidates": [{**candidate}, *_]} if candidate:
            pass
        case _:
            return None
    parts = _parse_parts(candidate.get("content"))
    texts = tuple("" if is_thought else text for text, is_thought in parts)
    thoughts = "".join(text for text, is_thought in parts if is_thought)
    finish_reason = _string(candidate.get("finishReason"))
    fetches = _parse_fetches(candidate.get("urlContextMetadata"))
    match candidate.get("groundingMetadata"):
        case {**grounding}:
            pass
        case _:
            return GroundedCandidate(texts, thoughts, finish_reason, fetches=fetches)
    sources = _parse_sources(_objects(grounding.get("groundingChunks")))
    queries = grounding.get("webSearchQueries")
    return GroundedCandidate(
        texts,
        thoughts,
        finish_reason,
        sources,
        tuple(map(str, queries)) if isinstance(queries, list) else (),
        fetches,
        _parse_suggestions(grounding.get("searchEntryPoint")),
        _parse_supports(_objects(grounding.get("groundingSupports")), texts, sources),
    )


def _parse_parts(content: JsonValue) -> list[tuple[str, bool]]:
    """Return the text of each part, and whether it is a thought."""
    match content:
        case {"parts": parts}:
            return [
                (_string(part.get("text")), bool(part.get("thought"))) for part in _objects(parts)
            ]
        case _:
            return []


def _parse_sources(chunks: list[dict[str, JsonValue]]) -> dict[int, Source]:
    sources: dict[int, Source] = {}
    for index, chunk in enumerate(chunks):
        match chunk:
            case {"web": {"uri": str(url), **web}} if url.startswith(("https://", "http://")):
                title = _string(web.get("title")) or _string(web.get("domain"))
                sources[index] = Source(url, title)
            case _:
                pass
    return sources


def _parse_supports(
    supports: list[dict[str, JsonValue]], texts: tuple[str, ...], sources: Mapping[int, Source]
) -> tuple[_Support, ...]:
    sizes = [len(text.encode()) for text in texts]
    return tuple(_parse_support(support, sizes, sources) for support in supports)


def _parse_support(
    support: dict[str, JsonValue], part_sizes: list[int], sources: Mapping[int, Source]
) -> _Support:
    """Parse a support; the API gives its end as an offset in bytes within one part."""
    match support.get("segment"):
        case {"endIndex": int(end_in_part), **segment}:
            part = segment.get("partIndex") or 0
            end = sum(part_sizes[:part]) + end_in_part if isinstance(part, int) else None
        case {**segment}:
            end = None
        case _:
            segment, end = {}, None
    indices = support.get("groundingChunkIndices")
    chunks = tuple(
        index
        for index in (indices if isinstance(indices, list) else [])
        if isinstance(index, int) and index in sources
    )
    return _Support(_string(segment.get("text")), end, chunks)


def _parse_suggestions(entry_point: JsonValue) -> str | None:
    match entry_point:
        case {"renderedContent": str(html)} if html:
            return html
        case _:
            return None


def _parse_fetches(metadata: JsonValue) -> tuple[RecordedFetch, ...]:
    match metadata:
        case {"urlMetadata": pages}:
            return tuple(map(_parse_fetch, _objects(pages)))
        case _:
            return ()


def _parse_fetch(page: dict[str, JsonValue]) -> RecordedFetch:
    status = str(page.get("urlRetrievalStatus"))
    if not status.endswith("SUCCESS"):
        return RecordedFetch(error=status)
    return RecordedFetch(pages=(Source(_string(page.get("retrievedUrl")), ""),))


def _objects(value: JsonValue) -> list[dict[str, JsonValue]]:
    """Return the list with an empty object for each item that is not one: indices stay valid."""
    items = value if isinstance(value, list) else []
    return [item if isinstance(item, dict) else {} for item in items]


def _string(value: JsonValue) -> str:
    return value if isinstance(value, str) else ""
