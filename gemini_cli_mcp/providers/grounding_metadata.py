"""What an answer of the Gemini API proves: its grounding metadata, in the API's own spelling.

The model cannot write any of this: it stands beside the text, not in it.
"""

import bisect
from collections.abc import Iterator

from gemini_cli_mcp.json_values import Object, as_list, as_object
from gemini_cli_mcp.types import Fetch, Search, Source, Support

Ends = dict[int, list[tuple[int, Source]]]
"""Where in the bytes of the text something supported ends, and by which sources."""


def candidate_of(response: Object) -> Object:
    """The answer itself; there is never more than one."""
    return as_object(next(iter(as_list(response.get("candidates"))), None))


def texts_of(candidate: Object) -> tuple[list[str], str]:
    """What each part says, nothing for a thought, so that indices fit; and all thoughts."""
    parts = [as_object(part) for part in as_list(as_object(candidate.get("content")).get("parts"))]
    said = [str(part.get("text") or "") for part in parts]
    thoughts = [text for text, part in zip(said, parts, strict=True) if part.get("thought")]
    texts = ["" if part.get("thought") else text for text, part in zip(said, parts, strict=True)]
    return texts, "".join(thoughts)


def search_of(candidate: Object, query: str = "") -> Search:
    """The search behind an answer; without sources it found nothing."""
    grounding = as_object(candidate.get("groundingMetadata"))
    texts, _ = texts_of(candidate)
    sources = sources_of(grounding)
    marks = {
        end: "".join(f"[{number}]" for number, _ in cited)
        for end, cited in ends_of(grounding, texts, sources).items()
    }
    return Search(
        query,
        None,
        tuple(sources.values()),
        inserted("".join(texts), marks) if sources else "",
        tuple(str(asked) for asked in as_list(grounding.get("webSearchQueries"))),
        tuple(_supports(grounding, sources)),
    )


def sources_of(grounding: Object) -> dict[int, Source]:
    """The pages of the web among the chunks, by their index."""
    chunks = [as_object(chunk) for chunk in as_list(grounding.get("groundingChunks"))]
    webs = {index: as_object(chunk.get("web")) for index, chunk in enumerate(chunks)}
    return {
        index: Source(str(web["uri"]), str(web.get("title") or web.get("domain") or ""))
        for index, web in webs.items()
        if str(web.get("uri", "")).startswith(("https://", "http://"))
    }


def ends_of(grounding: Object, texts: list[str], sources: dict[int, Source]) -> Ends:
    """Offsets are bytes within a part of the answer; sources are numbered from 1."""
    numbers = {index: number for number, index in enumerate(sources, 1)}
    sizes = [len(text.encode()) for text in texts]
    ends: Ends = {}
    for support in map(as_object, as_list(grounding.get("groundingSupports"))):
        segment = as_object(support.get("segment"))
        end, part = segment.get("endIndex"), segment.get("partIndex") or 0
        if not isinstance(end, int) or not isinstance(part, int):
            continue
        place = ends.setdefault(sum(sizes[:part]) + end, [])
        for index in _indices(support, sources):
            item = numbers[index], sources[index]
            place += [item] if item not in place else []
    return ends


def inserted(text: str, marks: dict[int, str]) -> str:
    """The text with these marks at these places in its bytes, never inside a character."""
    raw = text.encode()
    starts = [place for place, byte in enumerate(raw) if byte & 0xC0 != 0x80] + [len(raw)]
    for end in sorted(marks, reverse=True):
        place = starts[min(bisect.bisect_left(starts, end), len(starts) - 1)]
        if 0 < end <= len(raw):
            raw = raw[:place] + marks[end].encode() + raw[place:]
    return raw.decode(errors="replace")


def fetches_of(candidate: Object) -> tuple[Fetch, ...]:
    """The pages that the API itself retrieved, or failed to."""
    metadata = as_object(candidate.get("urlContextMetadata") or {})
    return tuple(
        Fetch(pages=(Source(str(page.get("retrievedUrl", "")), ""),))
        if str(page.get("urlRetrievalStatus")).endswith("SUCCESS")
        else Fetch(error=str(page.get("urlRetrievalStatus")))
        for page in map(as_object, as_list(metadata.get("urlMetadata")))
    )


def _supports(grounding: Object, sources: dict[int, Source]) -> Iterator[Support]:
    for support in map(as_object, as_list(grounding.get("groundingSupports"))):
        text = str(as_object(support.get("segment")).get("text") or "")
        urls = tuple(sources[index].url for index in _indices(support, sources))
        if urls:
            yield Support(text, urls)


def _indices(support: Object, sources: dict[int, Source]) -> list[int]:
    listed = as_list(support.get("groundingChunkIndices"))
    return [index for index in listed if isinstance(index, int) and index in sources]
