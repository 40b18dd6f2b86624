"""Write the text of a Markdown report so that only allowed URLs in it are links.

Anything that renderers would autolink is checked: URLs become `<url>` or the mark of a removed
link, and the dots of other host names are escaped. All other text keeps its meaning.
"""

import re
from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from markdown_it import MarkdownIt

from gemini_cli_mcp.research.url_finder import find_bare_domains, find_urls

INVISIBLE = re.compile(r"[\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
"""Invisible, and treated differently by parsers. The two joiners are not included: emoji and Indic
scripts need them."""
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_SUSPICIOUS = re.compile(
    rf"[<&\\\[\]`@]|//|www|://|~~~|xmpp:|{INVISIBLE.pattern}|{CONTROL.pattern}", re.IGNORECASE
)
_MARKUP = re.compile(r"[\\`*_\[\]<&~]")


class LinkPolicy(Protocol):
    """Decides which links to keep."""

    def allowed_url(self, address: str) -> str | None:
        """Return the URL as it should be written into a link; None if the link must go."""
        ...

    def allows_host(self, name: str) -> bool:
        """Return whether a bare host name may stay as it is."""
        ...


def is_link_free(source: str, policy: LinkPolicy) -> bool:
    """Return whether `source` has no possible link and nothing that renderers read differently."""
    return not _SUSPICIOUS.search(source) and all(
        policy.allows_host(name) for _, name in find_bare_domains(source)
    )


@dataclass
class TextRun:
    """Text that renderers treat as one string, and how it was written in the source."""

    chunks: list[str] = field(default_factory=list[str])
    length: int = 0
    sources: dict[int, tuple[int, str]] = field(default_factory=dict[int, tuple[int, str]])
    """By the offset of each escape or entity: the length of its text, and its source."""
    offsets: list[int] = field(default_factory=list[int])
    """The keys of `sources`, in order."""

    def add(self, text: str, source: str | None = None) -> None:
        """Append text; `source` is how an escape or entity was written."""
        text = CONTROL.sub(" ", INVISIBLE.sub("", text))
        if source is not None and text:
            self.sources[self.length] = len(text), source
            self.offsets.append(self.length)
        self.chunks.append(text)
        self.length += len(text)


class TextWriter:
    """Writes the text of one document."""

    def __init__(self, markdown: MarkdownIt, policy: LinkPolicy, mark: str) -> None:
        self._markdown = markdown
        self._policy = policy
        self._mark = mark

    def write_literal(self, text: str, *, in_cell: bool) -> str:
        """Write `text` literally, with all markup escaped."""
        run = TextRun()
        run.add(text)
        return self.write(run, _MARKUP, in_cell=in_cell)

    def write(
        self, run: TextRun, escapes: "re.Pattern[str]", *, in_cell: bool, in_link: bool = False
    ) -> str:
        """Write a text run, checking its URLs and keeping everything else as it was."""
        text = "".join(run.chunks)
        output: list[str] = []
        position = 0
        for match in find_urls(text):
            append_text(
                output,
                self._write_plain(text, run, position, match.start, escapes, in_cell=in_cell),
            )
            url = self._policy.allowed_url(self._markdown.normalizeLink(match.url))
            if in_link and url is not None:
                end = match.end
                append_text(
                    output, self._write_plain(text, run, match.start, end, escapes, in_cell=in_cell)
                )
            else:
                append_text(output, self._mark if url is None else f"<{url}>")
            position = match.end
        append_text(
            output, self._write_plain(text, run, position, len(text), escapes, in_cell=in_cell)
        )
        return "".join(output)

    def _write_plain(
        self,
        text: str,
        run: TextRun,
        start: int,
        end: int,
        escapes: "re.Pattern[str]",
        *,
        in_cell: bool,
    ) -> str:
        """Write text that contains no URLs."""
        specials = run.offsets[bisect_left(run.offsets, start) : bisect_left(run.offsets, end)]
        # Some linkifiers see only the text between two escapes, others all of it.
        edges = [
            start,
            *(edge for offset in specials for edge in (offset, offset + run.sources[offset][0])),
            end,
        ]
        segments = [(left, text[left:right]) for left, right in pairwise(edges)] if specials else []
        segments.append((start, text[start:end]))
        dots = {
            offset + dot
            for offset, segment in segments
            for dot, name in find_bare_domains(segment)
            if not self._policy.allows_host(name)
        }
        output: list[str] = []
        position = start
        # Everything that is not copied, in order: escapes, entities, and dots of host names.
        for offset in sorted(dots | set(specials)):
            output.append(_escape(text[position:offset], escapes, in_cell=in_cell))
            length, source = run.sources.get(offset, (1, "\\."))
            output.append("&lt;" if source == "\\<" else source)
            position = offset + length
        output.append(_escape(text[position:end], escapes, in_cell=in_cell))
        return "".join(output)


def _escape(text: str, pattern: "re.Pattern[str]", *, in_cell: bool) -> str:
    # Not all renderers treat a backslash before `<` as an escape.
    text = pattern.sub(lambda match: "&lt;" if match[0] == "<" else f"\\{match[0]}", text)
    return text.replace("|", "\\|") if in_cell else text


def append_text(output: list[str], text: str) -> None:
    """Append text such that neither side changes its meaning."""
    if not text:
        return
    last_char = output[-1][-1:] if output else ""
    if (last_char, text[0]) in (("`", "`"), ("]", "(")):
        output.append(" ")
    if output and output[-1].endswith("!") and text[0] == "[":
        output[-1] = f"{output[-1][:-1]}\\!"
    output.append(text)
