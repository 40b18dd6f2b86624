"""Parse the grounding metadata of Gemini API responses, in the API's own JSON spelling.

The metadata is reliable evidence: it is separate from the text, so the model cannot forge it.
"""

import bisect
from collections.abc import Iterator

from gemini_cli_mcp.json_values import JsonObject, list_or_empty, object_or_empty
from gemini_cli_mcp.types import GroundingSupport, RecordedFetch, RecordedSearch, Source

CitationOffsets = dict[int, list[tuple[int, Source]]]
"""Maps the byte offset at which a supported passage ends to its numbered sources."""


def first_candidate(response: JsonObject) -> JsonObject:
    """Return the response's first candidate; there is never more than one."""
    return object_or_empty(next(iter(list_or_empty(response.get("candidates"))), None))


def part_texts(candidate: JsonObject) -> tuple[list[str], str]:
    """Return the text of each part, and all thoughts joined.

    A thought has an empty text in the list, so that part indices stay valid.
    """
    parts = [
        object_or_empty(part)
        for part in list_or_empty(object_or_empty(candidate.get("content")).get("parts"))
    ]
    all_texts = [str(part.get("text") or "") for part in parts]
    thoughts = [text for text, part in zip(all_texts, parts, strict=True) if part.get("thought")]
    texts = [
        "" if part.get("thought") else text for text, part in zip(all_texts, parts, strict=True)
    ]
    return texts, "".join(thoughts)


def recorded_search(candidate: JsonObject, query: str = "") -> RecordedSearch:
    """Return the search behind a candidate; without sources it found nothing."""
    grounding = object_or_empty(candidate.get("groundingMetadata"))
    texts, _ = part_texts(candidate)
    sources = web_sources(grounding)
    marks = {
        end: "".join(f"[{number}]" for number, _ in cited)
        for end, cited in citation_offsets(grounding, texts, sources).items()
    }
    return RecordedSearch(
        query,
        None,
        tuple(sources.values()),
        insert_marks("".join(texts), marks) if sources else "",
        tuple(map(str, list_or_empty(grounding.get("webSearchQueries")))),
        tuple(_iter_supports(grounding, sources)),
    )


def web_sources(grounding: JsonObject) -> dict[int, Source]:
    """Return the web pages among the grounding chunks, keyed by chunk index."""
    chunks = [object_or_empty(chunk) for chunk in list_or_empty(grounding.get("groundingChunks"))]
    webs = {index: object_or_empty(chunk.get("web")) for index, chunk in enumerate(chunks)}
    return {
        index: Source(str(web["uri"]), str(web.get("title") or web.get("domain") or ""))
        for index, web in webs.items()
        if str(web.get("uri", "")).startswith(("https://", "http://"))
    }


def citation_offsets(
    grounding: JsonObject, texts: list[str], sources: dict[int, Source]
) -> CitationOffsets:
    """Return where each supported passage ends in the joined text; sources are numbered from 1.

    The API gives offsets in bytes within one part of the answer.
    """
    numbers = {index: number for number, index in enumerate(sources, 1)}
    sizes = [len(text.encode()) for text in texts]
    offsets: CitationOffsets = {}
    for support in map(object_or_empty, list_or_empty(grounding.get("groundingSupports"))):
        segment = object_or_empty(support.get("segment"))
        end, part = segment.get("endIndex"), segment.get("partIndex") or 0
        if not isinstance(end, int) or not isinstance(part, int):
            continue
        citations = offsets.setdefault(sum(sizes[:part]) + end, [])
        for index in _source_indices(support, sources):
            citation = numbers[index], sources[index]
            citations += [citation] if citation not in citations else []
    return offsets


def insert_marks(text: str, marks: dict[int, str]) -> str:
    """Insert each mark at its byte offset, never inside a character."""
    raw = text.encode()
    boundaries = [index for index, byte in enumerate(raw) if byte & 0xC0 != 0x80] + [len(raw)]
    for end in sorted(marks, reverse=True):
        offset = boundaries[min(bisect.bisect_left(boundaries, end), len(boundaries) - 1)]
        if 0 < end <= len(raw):
            raw = raw[:offset] + marks[end].encode() + raw[offset:]
    return raw.decode(errors="replace")


def recorded_fetches(candidate: JsonObject) -> tuple[RecordedFetch, ...]:
    """Return the pages that the API retrieved or failed to retrieve."""
    metadata = object_or_empty(candidate.get("urlContextMetadata") or {})
    return tuple(
        RecordedFetch(pages=(Source(str(page.get("retrievedUrl", "")), ""),))
        if str(page.get("urlRetrievalStatus")).endswith("SUCCESS")
        else RecordedFetch(error=str(page.get("urlRetrievalStatus")))
        for page in map(object_or_empty, list_or_empty(metadata.get("urlMetadata")))
    )


def _iter_supports(grounding: JsonObject, sources: dict[int, Source]) -> Iterator[GroundingSupport]:
    for support in map(object_or_empty, list_or_empty(grounding.get("groundingSupports"))):
        text = str(object_or_empty(support.get("segment")).get("text") or "")
        urls = tuple(sources[index].url for index in _source_indices(support, sources))
        if urls:
            yield GroundingSupport(text, urls)


def _source_indices(support: JsonObject, sources: dict[int, Source]) -> list[int]:
    indices = list_or_empty(support.get("groundingChunkIndices"))
    return [index for index in indices if isinstance(index, int) and index in sources]
