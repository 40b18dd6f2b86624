"""What stands in a block of Markdown, written so that only known addresses are links.

A link is written as `[words](address)` or `<address>` and in no other way; references are resolved
and their definitions are gone. Everything else is text: raw HTML, and whatever renderers would make
a link of by themselves.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

from markdown_it import MarkdownIt
from markdown_it.common.utils import unescapeAll
from markdown_it.token import Token

from gemini_cli_mcp.research.addresses import addresses, bare_domains
from gemini_cli_mcp.research.evidence import host_of

MOST_DELIMITERS = 2_000
"""Brackets and delimiters of one block; what has more is written as the text that it is."""

REMOVED = re.compile(r"[\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
"""Not seen, and read in different ways. The two joiners stay: emoji and Indic scripts need them."""
BLANKED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_SUSPICIOUS = re.compile(
    rf"[<&\\\[\]`@]|//|www|://|~~~|xmpp:|{REMOVED.pattern}|{BLANKED.pattern}", re.IGNORECASE
)
_DELIMITER = re.compile(r"[\[\]()*_~`<&]")

_TAG = r"<(?!/?(?i:sub|sup)>|(?i:br) ?/?>)(?=[A-Za-z/!?])"
"""What may begin a tag; these three are harmless."""
_TAG_WITHOUT_END = r"(?<!\S)<(?=[A-Za-z])|<(?=[/!?])"
"""What may begin a block of HTML, which needs no end."""
_ESCAPED = r"`|\\(?=[!-/:-@\[-`{-~]|\Z)|&(?=#?\w+;)|\](?=\()"
"""A backslash before what it would escape, the beginning of an entity, the middle of a link."""
_BRACKETS = r"|[\[\]]|(?<=\])\(|!(?=\[)"
"""Whatever a link or an image could be made of, also by a renderer that misses an escape."""
_DOLLAR = r"|\$"
_MARKUP = re.compile(r"[\\`*_\[\]<&~]")
_ENTITY = re.compile(r"&(?=#?\w+;)")
_ANGLE_BRACKETS = re.compile(r"<(https?://[^\s<>]+)>")
_SPLIT_CELL = re.compile(r"\\+\|")

MARK = "mark"
"""The type of a token of our own: here stood a link that nobody saw."""


class LinkJudge(Protocol):
    """Decides which addresses may stay."""

    def link(self, address: str) -> str | None:
        """The address as it may be written into a link; None if it may not."""
        ...

    def knows(self, name: str) -> bool:
        """Whether a bare host name may stay as it is."""
        ...


def is_plain(source: str, judge: LinkJudge) -> bool:
    """Whether nothing in this source can be a link, or be read in different ways."""
    return not _SUSPICIOUS.search(source) and all(
        judge.knows(name) for _, name in bare_domains(source)
    )


@dataclass
class _Run:
    """Text that renderers see as one, and how it stood in the source."""

    text: list[str] = field(default_factory=list[str])
    length: int = 0
    sources: dict[int, tuple[int, str]] = field(default_factory=dict[int, tuple[int, str]])
    """Where escapes and entities begin: how long what they mean is, and how they are written."""
    places: list[int] = field(default_factory=list[int])
    """The same places in order."""

    def add(self, text: str, source: str | None = None) -> None:
        text = BLANKED.sub(" ", REMOVED.sub("", text))
        if source is not None and text:
            self.sources[self.length] = len(text), source
            self.places.append(self.length)
        self.text.append(text)
        self.length += len(text)


@dataclass(frozen=True)
class _Link:
    """A link that may stay."""

    url: str
    inside: Sequence[Token]
    is_auto: bool


class Inline:
    """Writes the inline content of one document."""

    def __init__(
        self,
        markdown: MarkdownIt,
        environment: dict[str, Any],
        judge: LinkJudge,
        mark: str,
        labels: Mapping[str, str],
    ) -> None:
        self.judge = judge
        self._markdown = markdown
        self._environment = environment
        self._mark = mark
        self._labels = labels

    def write(self, content: str, *, cell: bool = False) -> str:
        """The content of a paragraph, a heading or a cell of a table."""
        if is_plain(content, self.judge):
            return content.replace("|", "\\|") if cell else content
        if len(_DELIMITER.findall(content)) > MOST_DELIMITERS:
            return self._text(unescapeAll(_ANGLE_BRACKETS.sub(r"\1", content)), cell=cell)
        tokens: list[Token] = []
        self._markdown.inline.parse(content, self._markdown, self._environment, tokens)
        return self._sequence(tokens, self._pattern(tokens, content), cell=cell)

    def _text(self, text: str, *, cell: bool) -> str:
        """Text that is nothing else, whatever stands in it."""
        run = _Run()
        run.add(text)
        return self._flush(run, _MARKUP, cell=cell)

    def _pattern(self, tokens: Sequence[Token], content: str) -> str:
        """What has to be escaped in the text of this block."""
        code = "".join(token.content for token in tokens if token.type == "code_inline")
        # Without its end there is no tag inside a line, and `$a<b$` stays as it is.
        pattern = f"{_ESCAPED}|{_TAG if '>' in content else _TAG_WITHOUT_END}"
        # In marked a bracket before code that holds the rest of a link makes one of both.
        pattern += _BRACKETS if "]" in code else ""
        # Renderers of formulas read them before code.
        return pattern + (_DOLLAR if "$" in code else "")

    def code(self, content: str, *, cell: bool = False) -> str:
        """A code span that ends where it should."""
        longest = max((len(run) for run in re.findall("`+", content)), default=0)
        ticks = "`" * (longest + 1)
        if cell and _SPLIT_CELL.search(content):
            return self._text(content, cell=True)  # renderers differ on where the cell ends
        blank = content.startswith(" ") and content.endswith(" ") and content.strip()
        pad = " " if content[:1] == "`" or content[-1:] == "`" or blank else ""
        if cell:
            content = content.replace("|", "\\|")
        return f"{ticks}{pad}{content}{pad}{ticks}"

    def _sequence(
        self, tokens: Sequence[Token], pattern: str, *, cell: bool, words: bool = False
    ) -> str:
        """Tokens in a row. As words of a link they hold no link of their own."""
        written: list[str] = []
        run = _Run()
        escaped = re.compile(pattern + _BRACKETS if words else pattern)

        def end_run() -> None:
            nonlocal run
            if run.length:
                _append(written, self._flush(run, escaped, cell=cell, words=words))
            run = _Run()

        for token in self._resolved(tokens, words=words):
            if isinstance(token, _Link):
                end_run()
                _append(written, self._link(token, pattern, cell=cell))
            elif token.type in ("text", "softbreak"):
                run.add(token.content or "\n")
            elif token.type == "text_special":
                run.add(token.content, token.markup)
            else:
                end_run()
                more = self._other(token, cell=cell, words=words)
                if token.type != MARK or not "".join(written[-2:]).endswith(more):
                    blank = token.type != MARK or not written or written[-1][-1:].isspace()
                    _append(written, more if blank else f" {more}")
        end_run()
        return "".join(written)

    def _resolved(self, tokens: Sequence[Token], *, words: bool) -> "Iterator[Token | _Link]":
        """The tokens with those links that may stay; what is left of others is text.

        It stands beside the text around it, and is judged together with that.
        """
        waiting = list(reversed(tokens))
        while waiting:
            token = waiting.pop()
            if token.type == "footnote_ref" and str(token.meta.get("label")) not in self._labels:
                continue  # an empty one
            if token.type not in ("link_open", "image"):
                if token.type != "text" or token.content:
                    yield token
                continue
            inside = _taken(waiting) if token.type == "link_open" else token.children or []
            url = self.judge.link(str(token.attrs.get("href") or token.attrs.get("src") or ""))
            if url is not None and not words:
                yield _Link(url, inside, is_auto=token.info == "auto")
                continue
            mark = [Token(MARK, "", 0)] if not words else []
            kept = [] if mark and token.info == "auto" else inside
            waiting.extend(reversed([*kept, *mark]))

    def _other(self, token: Token, *, cell: bool, words: bool) -> str:
        match token.type:
            case "hardbreak":
                return " " if cell or words else "\\\n"
            case "code_inline":
                return self.code(token.content, cell=cell)
            case "mark":
                return self._mark
            case "footnote_ref":
                return "" if words else f"[^{self._labels[str(token.meta['label'])]}]"
            case _:
                return token.markup  # of emphasis, as it was

    def _link(self, link: "_Link", pattern: str, *, cell: bool) -> str:
        """A link that may stay."""
        if link.is_auto:
            return f"<{link.url if '://' in link.url else link.inside[0].content}>"
        said = self._sequence(link.inside, pattern, cell=cell, words=True)
        if self._mark in said or not said.strip():
            said = host_of(link.url) or "link"
        return f"[{' '.join(said.split())}]({_ENTITY.sub('&amp;', link.url)})"

    def _flush(
        self, run: _Run, escaped: "re.Pattern[str]", *, cell: bool, words: bool = False
    ) -> str:
        """A run of text with its addresses judged, and everything else as it stood."""
        text = "".join(run.text)
        written: list[str] = []
        at = 0
        for address in addresses(text):
            _append(written, self._plain(text, run, at, address.start, escaped, cell=cell))
            url = self.judge.link(self._markdown.normalizeLink(address.url))
            if words and url is not None:
                end = address.end
                _append(written, self._plain(text, run, address.start, end, escaped, cell=cell))
            else:
                _append(written, self._mark if url is None else f"<{url}>")
            at = address.end
        _append(written, self._plain(text, run, at, len(text), escaped, cell=cell))
        return "".join(written)

    def _plain(
        self,
        text: str,
        run: _Run,
        start: int,
        end: int,
        escaped: "re.Pattern[str]",
        *,
        cell: bool,
    ) -> str:
        """Text without addresses."""
        specials = run.places[bisect_left(run.places, start) : bisect_left(run.places, end)]
        # A linkifier sees the text between two escapes alone, and others all of it.
        edges = [start, *(edge for at in specials for edge in (at, at + run.sources[at][0])), end]
        parts = [(at, text[at:stop]) for at, stop in pairwise(edges)] if specials else []
        parts.append((start, text[start:end]))
        dots = {
            at + dot
            for at, part in parts
            for dot, name in bare_domains(part)
            if not self.judge.knows(name)
        }
        written: list[str] = []
        at = start
        # Whatever is written in its own way, in order: escapes and entities, and dots of names.
        for place in sorted(dots | set(specials)):
            written.append(_escaped(text[at:place], escaped, cell=cell))
            length, source = run.sources.get(place, (1, "\\."))
            written.append("&lt;" if source == "\\<" else source)
            at = place + length
        written.append(_escaped(text[at:end], escaped, cell=cell))
        return "".join(written)


def _escaped(text: str, pattern: "re.Pattern[str]", *, cell: bool) -> str:
    # Not all renderers take a backslash before `<` for an escape.
    text = pattern.sub(lambda match: "&lt;" if match[0] == "<" else f"\\{match[0]}", text)
    return text.replace("|", "\\|") if cell else text


def _append(written: list[str], more: str) -> None:
    """Put text behind text so that both mean the same together."""
    if not more:
        return
    before = written[-1][-1:] if written else ""
    if (before, more[0]) in (("`", "`"), ("]", "(")):
        written.append(" ")
    if written and written[-1].endswith("!") and more[0] == "[":
        written[-1] = f"{written[-1][:-1]}\\!"
    written.append(more)


def _taken(waiting: list[Token]) -> list[Token]:
    """The tokens up to the end of a link, which is dropped; links do not nest."""
    inside: list[Token] = []
    while waiting and (token := waiting.pop()).type != "link_close":
        inside.append(token)
    return inside
