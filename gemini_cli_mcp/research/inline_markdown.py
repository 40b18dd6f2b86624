"""What stands in a block of Markdown, written so that only known addresses are links.

A link is written as `[words](address)` or `<address>` and in no other way; references are resolved
and their definitions are gone. Everything else is text: raw HTML, and whatever renderers would make
a link of by themselves.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from markdown_it import MarkdownIt
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

_ESCAPED = re.compile(
    r"`"
    r"|\\(?=[!-/:-@\[-`{-~]|\Z)"  # before what it would escape
    r"|<(?!/?(?:sub|sup)>|br ?/?>)(?=[A-Za-z/!?])"  # what may begin a tag; these three are harmless
    r"|&(?=#?\w+;)"
    r"|\](?=\()"
)
_ESCAPED_IN_WORDS = re.compile(rf"{_ESCAPED.pattern}|[\[\]]")
_MARKUP = re.compile(r"[\\`*_\[\]<>&~]")
_ENTITY = re.compile(r"&(?=#?\w+;)")


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

    def add(self, text: str, source: str | None = None) -> None:
        text = BLANKED.sub(" ", REMOVED.sub("", text))
        if source is not None and text:
            self.sources[self.length] = len(text), source
        self.text.append(text)
        self.length += len(text)


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
            run = _Run()
            run.add(content)
            return self._flush(run, _MARKUP, cell=cell)
        tokens: list[Token] = []
        self._markdown.inline.parse(content, self._markdown, self._environment, tokens)
        return self._sequence(tokens, cell=cell)

    def code(self, content: str, *, cell: bool = False) -> str:
        """A code span that ends where it should."""
        longest = max((len(run) for run in re.findall("`+", content)), default=0)
        ticks = "`" * (longest + 1)
        blank = content.startswith(" ") and content.endswith(" ") and content.strip()
        pad = " " if content[:1] == "`" or content[-1:] == "`" or blank else ""
        if cell:
            content = content.replace("|", "\\|")
        return f"{ticks}{pad}{content}{pad}{ticks}"

    def _sequence(self, tokens: Sequence[Token], *, cell: bool, words: bool = False) -> str:
        """Tokens in a row. As words of a link they hold no link of their own."""
        written: list[str] = []
        run = _Run()
        # In marked a bracket before code that holds the rest of a link makes one of both.
        split = any(token.type == "code_inline" and "]" in token.content for token in tokens)
        escaped = _ESCAPED_IN_WORDS if words or split else _ESCAPED
        at = 0

        def end_run() -> None:
            nonlocal run
            if run.length:
                _append(written, self._flush(run, escaped, cell=cell, words=words))
            run = _Run()

        while at < len(tokens):
            token = tokens[at]
            at += 1
            match token.type:
                case "text":
                    run.add(token.content)
                case "text_special":
                    run.add(token.content, token.markup)
                case "softbreak":
                    run.add("\n")
                case "footnote_ref" if str(token.meta.get("label")) not in self._labels:
                    pass  # an empty one is gone, and what is around it stands side by side
                case "link_open":
                    end = _closing(tokens, at)
                    end_run()
                    _append(written, self._link(token, tokens[at:end], cell=cell, words=words))
                    at = end + 1
                case _:
                    end_run()
                    _append(written, self._other(token, cell=cell, words=words))
        end_run()
        return "".join(written)

    def _other(self, token: Token, *, cell: bool, words: bool) -> str:
        match token.type:
            case "hardbreak":
                return " " if cell or words else "\\\n"
            case "code_inline":
                return self.code(token.content, cell=cell)
            case "image":
                return self._link(token, token.children or [], cell=cell, words=words)
            case "footnote_ref":
                return "" if words else f"[^{self._labels[str(token.meta['label'])]}]"
            case _:
                return token.markup  # of emphasis, as it was

    def _link(self, token: Token, inside: Sequence[Token], *, cell: bool, words: bool) -> str:
        address = str(token.attrs.get("href") or token.attrs.get("src") or "")
        auto = token.info == "auto"
        if words:  # an image in a link, whose words are all that can stay
            self.judge.link(address)
            return self._sequence(inside, cell=cell, words=True)
        url = self.judge.link(address)
        if url is None and auto:
            return self._mark
        if url is None:
            said = self._sequence(inside, cell=cell).replace(self._mark, "").strip()
            return f"{said} {self._mark}" if said else self._mark
        if auto:
            return f"<{url if '://' in url else inside[0].content}>"
        said = self._sequence(inside, cell=cell, words=True)
        if self._mark in said or not said.strip():
            said = host_of(url) or "link"
        return f"[{' '.join(said.split())}]({_ENTITY.sub('&amp;', url)})"

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
        part = text[start:end]
        dots = {start + dot for dot, name in bare_domains(part) if not self.judge.knows(name)}
        written: list[str] = []
        at = start
        # Whatever is written in its own way, in order: escapes and entities, and dots of names.
        places = sorted(dots | {place for place in run.sources if start <= place < end})
        for place in places:
            written.append(_escaped(text[at:place], escaped, cell=cell))
            length, source = run.sources.get(place, (1, "\\."))
            written.append("\\|" if cell and source == "|" else source)
            at = place + length
        written.append(_escaped(text[at:end], escaped, cell=cell))
        return "".join(written)


def _escaped(text: str, pattern: "re.Pattern[str]", *, cell: bool) -> str:
    text = pattern.sub(lambda match: f"\\{match[0]}", text)
    return text.replace("|", "\\|") if cell else text


def _append(written: list[str], more: str) -> None:
    """Put text behind text so that both mean the same together."""
    if not more:
        return
    if written and written[-1].endswith("]") and more[0] == "(":
        written.append(" ")
    if written and written[-1].endswith("!") and more[0] == "[":
        written[-1] = f"{written[-1][:-1]}\\!"
    written.append(more)


def _closing(tokens: Sequence[Token], at: int) -> int:
    """Where the link ends that begins before `at`; links do not nest."""
    while at < len(tokens) and tokens[at].type != "link_close":
        at += 1
    return at
