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

from gemini_cli_mcp.research.evidence import url_host
from gemini_cli_mcp.research.url_finder import find_bare_domains, find_urls

MAX_DELIMITERS = 2_000
"""Brackets and delimiters of one block; what has more is written as the text that it is."""

INVISIBLE = re.compile(r"[\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
"""Not seen, and read in different ways. The two joiners stay: emoji and Indic scripts need them."""
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_SUSPICIOUS = re.compile(
    rf"[<&\\\[\]`@]|//|www|://|~~~|xmpp:|{INVISIBLE.pattern}|{CONTROL.pattern}", re.IGNORECASE
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

MARK_TYPE = "mark"
"""The type of a token of our own: here stood a link that nobody saw."""


class LinkPolicy(Protocol):
    """Decides which addresses may stay."""

    def allowed_url(self, address: str) -> str | None:
        """The address as it may be written into a link; None if it may not."""
        ...

    def allows_host(self, name: str) -> bool:
        """Whether a bare host name may stay as it is."""
        ...


def is_link_free(source: str, policy: LinkPolicy) -> bool:
    """Whether nothing in this source can be a link, or be read in different ways."""
    return not _SUSPICIOUS.search(source) and all(
        policy.allows_host(name) for _, name in find_bare_domains(source)
    )


@dataclass
class _TextRun:
    """Text that renderers see as one, and how it stood in the source."""

    text: list[str] = field(default_factory=list[str])
    length: int = 0
    sources: dict[int, tuple[int, str]] = field(default_factory=dict[int, tuple[int, str]])
    """Where escapes and entities begin: how long what they mean is, and how they are written."""
    offsets: list[int] = field(default_factory=list[int])
    """The same places in order."""

    def add(self, text: str, source: str | None = None) -> None:
        text = CONTROL.sub(" ", INVISIBLE.sub("", text))
        if source is not None and text:
            self.sources[self.length] = len(text), source
            self.offsets.append(self.length)
        self.text.append(text)
        self.length += len(text)


@dataclass(frozen=True)
class _Link:
    """A link that may stay."""

    url: str
    inside: Sequence[Token]
    is_auto: bool


class InlineWriter:
    """Writes the inline content of one document."""

    def __init__(
        self,
        markdown: MarkdownIt,
        environment: dict[str, Any],
        policy: LinkPolicy,
        mark: str,
        labels: Mapping[str, str],
    ) -> None:
        self.policy = policy
        self._markdown = markdown
        self._environment = environment
        self._mark = mark
        self._labels = labels

    def write(self, content: str, *, cell: bool = False) -> str:
        """The content of a paragraph, a heading or a cell of a table."""
        if is_link_free(content, self.policy):
            return content.replace("|", "\\|") if cell else content
        if len(_DELIMITER.findall(content)) > MAX_DELIMITERS:
            return self._write_text(unescapeAll(_ANGLE_BRACKETS.sub(r"\1", content)), cell=cell)
        tokens: list[Token] = []
        self._markdown.inline.parse(content, self._markdown, self._environment, tokens)
        return self._write_tokens(tokens, self._escape_pattern(tokens, content), cell=cell)

    def _write_text(self, text: str, *, cell: bool) -> str:
        """Text that is nothing else, whatever stands in it."""
        run = _TextRun()
        run.add(text)
        return self._write_run(run, _MARKUP, cell=cell)

    def _escape_pattern(self, tokens: Sequence[Token], content: str) -> str:
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
            return self._write_text(content, cell=True)  # renderers differ on where the cell ends
        blank = content.startswith(" ") and content.endswith(" ") and content.strip()
        pad = " " if content[:1] == "`" or content[-1:] == "`" or blank else ""
        if cell:
            content = content.replace("|", "\\|")
        return f"{ticks}{pad}{content}{pad}{ticks}"

    def _write_tokens(
        self, tokens: Sequence[Token], pattern: str, *, cell: bool, in_link: bool = False
    ) -> str:
        """Tokens in a row. As words of a link they hold no link of their own."""
        written: list[str] = []
        run = _TextRun()
        escaped = re.compile(pattern + _BRACKETS if in_link else pattern)

        def end_run() -> None:
            nonlocal run
            if run.length:
                _append(written, self._write_run(run, escaped, cell=cell, in_link=in_link))
            run = _TextRun()

        for token in self._resolve_links(tokens, in_link=in_link):
            if isinstance(token, _Link):
                end_run()
                _append(written, self._write_link(token, pattern, cell=cell))
            elif token.type in ("text", "softbreak"):
                run.add(token.content or "\n")
            elif token.type == "text_special":
                run.add(token.content, token.markup)
            else:
                end_run()
                more = self._write_token(token, cell=cell, in_link=in_link)
                if token.type != MARK_TYPE or not "".join(written[-2:]).endswith(more):
                    blank = token.type != MARK_TYPE or not written or written[-1][-1:].isspace()
                    _append(written, more if blank else f" {more}")
        end_run()
        return "".join(written)

    def _resolve_links(
        self, tokens: Sequence[Token], *, in_link: bool
    ) -> "Iterator[Token | _Link]":
        """The tokens with those links that may stay; what is left of others is text.

        It stands beside the text around it, and is judged together with that.
        """
        stack = list(reversed(tokens))
        while stack:
            token = stack.pop()
            if token.type == "footnote_ref" and str(token.meta.get("label")) not in self._labels:
                continue  # an empty one
            if token.type not in ("link_open", "image"):
                if token.type != "text" or token.content:
                    yield token
                continue
            inside = _pop_link_content(stack) if token.type == "link_open" else token.children or []
            url = self.policy.allowed_url(
                str(token.attrs.get("href") or token.attrs.get("src") or "")
            )
            if url is not None and not in_link:
                yield _Link(url, inside, is_auto=token.info == "auto")
                continue
            mark = [Token(MARK_TYPE, "", 0)] if not in_link else []
            kept = [] if mark and token.info == "auto" else inside
            stack.extend(reversed([*kept, *mark]))

    def _write_token(self, token: Token, *, cell: bool, in_link: bool) -> str:
        match token.type:
            case "hardbreak":
                return " " if cell or in_link else "\\\n"
            case "code_inline":
                return self.code(token.content, cell=cell)
            case "mark":
                return self._mark
            case "footnote_ref":
                return "" if in_link else f"[^{self._labels[str(token.meta['label'])]}]"
            case _:
                return token.markup  # of emphasis, as it was

    def _write_link(self, link: "_Link", pattern: str, *, cell: bool) -> str:
        """A link that may stay."""
        if link.is_auto:
            return f"<{link.url if '://' in link.url else link.inside[0].content}>"
        words = self._write_tokens(link.inside, pattern, cell=cell, in_link=True)
        if self._mark in words or not words.strip():
            words = url_host(link.url) or "link"
        return f"[{' '.join(words.split())}]({_ENTITY.sub('&amp;', link.url)})"

    def _write_run(
        self, run: _TextRun, escaped: "re.Pattern[str]", *, cell: bool, in_link: bool = False
    ) -> str:
        """A run of text with its addresses judged, and everything else as it stood."""
        text = "".join(run.text)
        written: list[str] = []
        at = 0
        for address in find_urls(text):
            _append(written, self._write_plain(text, run, at, address.start, escaped, cell=cell))
            url = self.policy.allowed_url(self._markdown.normalizeLink(address.url))
            if in_link and url is not None:
                end = address.end
                _append(
                    written, self._write_plain(text, run, address.start, end, escaped, cell=cell)
                )
            else:
                _append(written, self._mark if url is None else f"<{url}>")
            at = address.end
        _append(written, self._write_plain(text, run, at, len(text), escaped, cell=cell))
        return "".join(written)

    def _write_plain(
        self,
        text: str,
        run: _TextRun,
        start: int,
        end: int,
        escaped: "re.Pattern[str]",
        *,
        cell: bool,
    ) -> str:
        """Text without addresses."""
        specials = run.offsets[bisect_left(run.offsets, start) : bisect_left(run.offsets, end)]
        # A linkifier sees the text between two escapes alone, and others all of it.
        edges = [start, *(edge for at in specials for edge in (at, at + run.sources[at][0])), end]
        parts = [(at, text[at:stop]) for at, stop in pairwise(edges)] if specials else []
        parts.append((start, text[start:end]))
        dots = {
            at + dot
            for at, part in parts
            for dot, name in find_bare_domains(part)
            if not self.policy.allows_host(name)
        }
        written: list[str] = []
        at = start
        # Whatever is written in its own way, in order: escapes and entities, and dots of names.
        for place in sorted(dots | set(specials)):
            written.append(_escape(text[at:place], escaped, cell=cell))
            length, source = run.sources.get(place, (1, "\\."))
            written.append("&lt;" if source == "\\<" else source)
            at = place + length
        written.append(_escape(text[at:end], escaped, cell=cell))
        return "".join(written)


def _escape(text: str, pattern: "re.Pattern[str]", *, cell: bool) -> str:
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


def _pop_link_content(stack: list[Token]) -> list[Token]:
    """The tokens up to the end of a link, which is dropped; links do not nest."""
    inside: list[Token] = []
    while stack and (token := stack.pop()).type != "link_close":
        inside.append(token)
    return inside
