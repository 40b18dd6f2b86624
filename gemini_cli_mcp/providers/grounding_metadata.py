"""What an answer of the Gemini API proves: its grounding metadata, in the API's own spelling.

The model cannot write any of this: it stands beside the text, not in it.
"""

import bisect
from collections.abc import Iterator

from gemini_cli_mcp.json_values import JsonObject, list_or_empty, object_or_empty
from gemini_cli_mcp.types import GroundingSupport, RecordedFetch, RecordedSearch, Source

CitationOffsets = dict[int, list[tuple[int, Source]]]
"""Where in the bytes of the text something supported ends, and by which sources."""


def first_candidate(response: JsonObject) -> JsonObject:
    """The answer itself; there is never more than one."""
    return object_or_empty(next(iter(list_or_empty(response.get("candidates"))), None))


def part_texts(candidate: JsonObject) -> tuple[list[str], str]:
    """What each part says, nothing for a thought, so that indices fit; and all thoughts."""
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
    """The search behind an answer; without sources it found nothing."""
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
        tuple(str(asked) for asked in list_or_empty(grounding.get("webSearchQueries"))),
        tuple(_supports(grounding, sources)),
    )


def web_sources(grounding: JsonObject) -> dict[int, Source]:
    """The pages of the web among the chunks, by their index."""
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
    """Offsets are bytes within a part of the answer; sources are numbered from 1."""
    numbers = {index: number for number, index in enumerate(sources, 1)}
    sizes = [len(text.encode()) for text in texts]
    ends: CitationOffsets = {}
    for support in map(object_or_empty, list_or_empty(grounding.get("groundingSupports"))):
        segment = object_or_empty(support.get("segment"))
        end, part = segment.get("endIndex"), segment.get("partIndex") or 0
        if not isinstance(end, int) or not isinstance(part, int):
            continue
        citations = ends.setdefault(sum(sizes[:part]) + end, [])
        for index in _indices(support, sources):
            item = numbers[index], sources[index]
            citations += [item] if item not in citations else []
    return ends


def insert_marks(text: str, marks: dict[int, str]) -> str:
    """The text with these marks at these places in its bytes, never inside a character."""
    raw = text.encode()
    starts = [offset for offset, byte in enumerate(raw) if byte & 0xC0 != 0x80] + [len(raw)]
    for end in sorted(marks, reverse=True):
        place = starts[min(bisect.bisect_left(starts, end), len(starts) - 1)]
        if 0 < end <= len(raw):
            raw = raw[:place] + marks[end].encode() + raw[place:]
    return raw.decode(errors="replace")


def recorded_fetches(candidate: JsonObject) -> tuple[RecordedFetch, ...]:
    """The pages that the API itself retrieved, or failed to."""
    metadata = object_or_empty(candidate.get("urlContextMetadata") or {})
    return tuple(
        RecordedFetch(pages=(Source(str(page.get("retrievedUrl", "")), ""),))
        if str(page.get("urlRetrievalStatus")).endswith("SUCCESS")
        else RecordedFetch(error=str(page.get("urlRetrievalStatus")))
        for page in map(object_or_empty, list_or_empty(metadata.get("urlMetadata")))
    )


def _supports(grounding: JsonObject, sources: dict[int, Source]) -> Iterator[GroundingSupport]:
    for support in map(object_or_empty, list_or_empty(grounding.get("groundingSupports"))):
        text = str(object_or_empty(support.get("segment")).get("text") or "")
        urls = tuple(sources[index].url for index in _indices(support, sources))
        if urls:
            yield GroundingSupport(text, urls)


def _indices(support: JsonObject, sources: dict[int, Source]) -> list[int]:
    indices = list_or_empty(support.get("groundingChunkIndices"))
    return [index for index in indices if isinstance(index, int) and index in sources]
