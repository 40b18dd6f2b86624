"""The gate for a report's links: what nobody saw is marked, and no link any more.

Two looks. The first works on the text as it stands, so that everything it does not object to
stays byte for byte. The second reads the outcome with a real Markdown parser, as a client
would, and takes apart whatever block still holds an unseen address: by entities, escapes,
HTML or nesting that the first look did not understand.
"""

import html
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import anyio.to_thread
from markdown_it import MarkdownIt
from markdown_it.token import Token

from gemini_cli_mcp.errors import ExecutionFailed
from gemini_cli_mcp.models import Reply
from gemini_cli_mcp.research.evidence import Ledger, Standing, canonical, host_of

MARK = "(unverified source)"
"""Stands in the text where a link was taken out."""
LARGEST = 400_000
"""Characters that are read by the parser; hostile ones take it 20 s."""

# A URL in running text ends where prose goes on: at blanks, quotes, brackets and any CJK.
_END = r"\s\0<>\"'`\\\[\]{}|\u2010-\u206f\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\ufe30-\uffef"
_BARE = re.compile(
    rf"(?:(?:https?|ftps?)://(?=[^\W_]|\[)|(?<![^\W_]|[@./-])www\.(?=[^\W_]))"
    rf"(?:(?:(?!(?<![=/?&])https?://)[^{_END}])+|[^\s\0/<>\"'`\[\]{{}}|]+)",
    re.IGNORECASE,
)
_TITLE = r"(?:\"[^\"\n]*+\"|'[^'\n]*+'|\([^()\n]*+\))"
_ADDRESS = r"(?:<([^<>\n]*+)>|((?:[^\s()<>]++|\([^\s()]*+\))*+))"
_TEXT = r"\[((?:[^\[\]\n]++|\[[^\[\]\n]*+\])*+)\]"
_LINK = re.compile(rf"!?{_TEXT}\(\s*+{_ADDRESS}(?:\s++({_TITLE}))?\s*+\)")
_AUTOLINK = re.compile(r"<([a-zA-Z][\w+.-]*+:[^\s<>\0]*+)>")
_DEFINITION = re.compile(
    r"^ {0,3}\[([^\[\]^\n][^\[\]\n]*+)\]:[ \t]*+<?([^\s<>]++)>?[ \t]*+"
    rf"{_TITLE}?+[ \t]*+(?:\n|\Z)",
    re.MULTILINE,
)
_REFERENCE = re.compile(rf"!?{_TEXT}(?:\[([^\[\]\n]*+)\])?(?![(\[:])")
_TICKS = re.compile(r"(?<!\\)`+")
_ATTRIBUTE = re.compile(r"""(?:href|src)\s*=\s*["']?([^"'\s>]*)""", re.IGNORECASE)
_SCHEME = re.compile(r"[a-zA-Z][\w+.-]*:")
_PREFIX = re.compile(r"(?:[ \t>]|[-*+][ \t]|\d{1,9}[.)][ \t]|#{1,6}[ \t])*")


@dataclass(frozen=True)
class Checked:
    """A report whose links are all covered, and how they were."""

    text: str
    citations: dict[str, int] | None
    """total, seen, domain, unseen: each URL counts once. None: there was no ledger."""

    @property
    def has_unseen(self) -> bool:
        """Whether the report may rest on something that nobody saw, in this round or before."""
        unseen = self.citations and self.citations["unseen"]
        return bool(unseen) or len(self.text) > LARGEST or MARK[1:-1] in self.text.lower()


async def gate(report: str, replies: Sequence[Reply]) -> Checked:
    """The report, held to what these runs saw; without a ledger there is nothing to hold it to."""
    if all(reply.evidence != "ledger" for reply in replies):
        return Checked(report, None)
    # In a thread: a hostile report must not stop the server.
    checked = await anyio.to_thread.run_sync(
        check_citations, report, Ledger.of(*replies), abandon_on_cancel=True
    )
    if not checked.text.strip():
        raise ExecutionFailed("The report was nothing but links that nobody saw.")
    return checked


def check_citations(report: str, ledger: Ledger) -> Checked:
    """Judge every link of a Markdown report; unseen ones are marked and no links any more."""
    gate = _Gate(ledger)
    text = gate.first_look(report.replace("\0", ""))
    if len(text) <= LARGEST:
        text = gate.second_look(text)
    counts: dict[str, int] = dict.fromkeys(("seen", "domain", "unseen"), 0)
    for standing in gate.judged.values():
        counts[standing] += 1
    return Checked(text, {"total": len(gate.judged), **counts})


class _Gate:
    """Goes through one report."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.judged: dict[str, Standing] = {}

    def first_look(self, text: str) -> str:
        code = list(_code(text)) if len(text) <= LARGEST else []
        unseen = self._unseen_definitions(text, code)
        parts: list[str] = []
        at = 0
        for start, end in (*code, (len(text), len(text))):
            parts += (self._prose(text[at:start], unseen), text[start:end])
            at = end
        return "".join(parts)

    def second_look(self, text: str) -> str:
        for rebuild in (self._rebuilt, self._rebuilt, _nothing_but_the_mark):
            lines = text.split("\n")
            changed = False
            for (start, end), tokens in reversed(_blocks(text).items()):
                if any(map(self._is_bad, tokens)):
                    prefix = _PREFIX.match(lines[start])
                    said = " | ".join(map(rebuild, tokens))
                    lines[start:end] = [(prefix[0] if prefix else "") + said]
                    changed = True
            text = "\n".join(lines)
            if not changed:
                break
        return text

    def _is_bad(self, token: Token) -> bool:
        """Whether a client that reads this block would find an unseen address in it."""
        if token.type == "html_block":
            return self._has_bad_html(token.content)
        if token.type == "definition":
            return not self._may_stay(token.content)
        plain = ""
        for child in token.children or ():
            if child.type in ("link_open", "image"):
                address = str(child.attrs.get("href") or child.attrs.get("src") or "")
                title = str(child.attrs.get("title") or "")
                if not self._may_stay(address) or self._has_bad_url(title):
                    return True
            elif child.type == "html_inline" and self._has_bad_html(child.content):
                return True
            plain += child.content if child.type == "text" else "\n"
        return self._has_bad_url(plain)

    def _has_bad_html(self, source: str) -> bool:
        addresses = map(html.unescape, _ATTRIBUTE.findall(source))
        return self._has_bad_url(html.unescape(source)) or not all(map(self._may_stay, addresses))

    def _has_bad_url(self, text: str) -> bool:
        covered = [self._is_covered(_trimmed(url)) for url in _BARE.findall(text)]  # count all
        return not all(covered)

    def _may_stay(self, address: str) -> bool:
        if not _is_web(address) and not _SCHEME.match(address) and not _is_local(address):
            address = f"https://{address}"  # a reader may take it for one
        return _is_local(address) or (_is_web(address) and self._is_covered(address))

    def _rebuilt(self, token: Token) -> str:
        """The words of a block, with only those links that may stay."""
        if token.type == "definition":
            return ""
        parts: list[str] = []
        links: list[str] = []
        for child in token.children or ():
            if child.type == "link_open":
                address = str(child.attrs.get("href") or "")
                links.append(address if self._may_stay(address) else "")
                parts.append("[" if links[-1] else "")
            elif child.type == "link_close":
                address = links.pop()
                parts.append(f"](<{address}>)" if address else f" {MARK}")
            elif child.type == "code_inline":
                parts.append(f"{child.markup} {child.content} {child.markup}")
            elif child.type in ("image", "text"):
                parts.append(_escaped(_BARE.sub(self._bare, child.content)))
            elif child.type in ("softbreak", "hardbreak"):
                parts.append(" ")
        return "".join(parts) or MARK

    def _unseen_definitions(self, text: str, code: list[tuple[int, int]]) -> set[str]:
        """The ids of `[id]: URL` lines whose URL nobody saw; of two the first counts."""
        ids: dict[str, bool] = {}
        for definition in _DEFINITION.finditer(text):
            if not any(start <= definition.start() < end for start, end in code):
                ids.setdefault(definition[1].casefold(), self._may_stay(definition[2]))
        return {name for name, stays in ids.items() if not stays}

    def _prose(self, prose: str, unseen_ids: set[str]) -> str:
        if unseen_ids:
            prose = _DEFINITION.sub(
                lambda match: "" if match[1].casefold() in unseen_ids else match[0], prose
            )
            prose = _REFERENCE.sub(lambda match: self._reference(match, unseen_ids), prose)
        # Links are put aside, so that the URL inside one is not judged again as a bare one.
        kept: list[str] = []

        def keep(text: str) -> str:
            kept.append(text)
            return f"\0{len(kept) - 1}\0"

        prose = _LINK.sub(lambda match: self._link(match, keep), prose)
        prose = _AUTOLINK.sub(lambda match: self._autolink(match, keep), prose)
        prose = _BARE.sub(self._bare, prose)
        return re.sub(r"\0(\d+)\0", lambda match: kept[int(match[1])], prose)

    def _link(self, match: re.Match[str], keep: Callable[[str], str]) -> str:
        text, url, title = match[1], match[2] or match[3] or "", match[4] or ""
        if not self._may_stay(url):
            return self._marked(text)
        # The words of a good link may be the address of a bad one.
        if self._has_bad_url(f"{text} {title}"):
            return keep(f"[{host_of(url) or 'link'}]({url})")
        return keep(match[0])

    def _autolink(self, match: re.Match[str], keep: Callable[[str], str]) -> str:
        return keep(match[0]) if self._may_stay(match[1]) else MARK

    def _bare(self, match: re.Match[str]) -> str:
        url = _trimmed(match[0])
        return match[0] if self._is_covered(url) else MARK + match[0][len(url) :]

    def _reference(self, match: re.Match[str], unseen_ids: set[str]) -> str:
        identifier = (match[2] or match[1]).casefold()
        return self._marked(match[1]) if identifier in unseen_ids else match[0]

    def _is_covered(self, url: str) -> bool:
        standing = self._ledger.standing(url)
        self.judged[canonical(url)] = standing
        return standing != "unseen"

    @staticmethod
    def _marked(text: str) -> str:
        said = _BARE.sub("", text).strip()
        return f"{said} {MARK}" if said else MARK


def _nothing_but_the_mark(token: Token) -> str:
    return MARK


@cache
def _parser() -> MarkdownIt:
    return MarkdownIt("commonmark").enable("table")


def _blocks(text: str) -> dict[tuple[int, int], list[Token]]:
    """The blocks of a text that are no code, by their lines; a table's row has several."""
    environment: dict[str, dict[str, dict[str, Any]]] = {}
    blocks: dict[tuple[int, int], list[Token]] = {}
    for token in _parser().parse(text, environment):
        if token.map and token.type in ("inline", "html_block"):
            blocks.setdefault((token.map[0], token.map[1]), []).append(token)
    for definition in environment.get("references", {}).values():
        start, end = definition["map"]
        token = Token("definition", "", 0, content=str(definition["href"]))
        blocks.setdefault((start, end), []).append(token)
    return dict(sorted(blocks.items()))


def _code(text: str) -> Iterator[tuple[int, int]]:
    """Where code stands in a text: blocks as the parser finds them, spans inside the others."""
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    ranges: set[tuple[int, int, bool]] = set()
    for token in _parser().parse(text):
        if token.map and token.type in ("fence", "code_block", "inline"):
            ranges.add((token.map[0], token.map[1], token.type == "inline"))
    for first, last, is_prose in sorted(ranges):
        start, end = starts[first], min(starts[last], len(text))
        if is_prose:
            yield from _code_spans(text, start, end)
        else:
            yield start, end


def _code_spans(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Backticks up to the next run of as many, in linear time."""
    runs = [match.span() for match in _TICKS.finditer(text, start, end)]
    later: dict[int, list[int]] = {}
    for index in reversed(range(len(runs))):
        later.setdefault(runs[index][1] - runs[index][0], []).append(index)
    index = 0
    while index < len(runs):
        begin, opened = runs[index]
        alike = later[opened - begin]
        while alike and alike[-1] <= index:
            alike.pop()
        if alike:
            index = alike[-1]
            yield begin, runs[index][1]
        index += 1


def _trimmed(url: str) -> str:
    """A bare URL without the punctuation of the sentence around it."""
    surplus = url.count(")") - url.count("(")
    end = len(url)
    while end and (url[end - 1] in ".,;:!?*_~" or (url[end - 1] == ")" and surplus > 0)):
        surplus -= url[end - 1] == ")"
        end -= 1
    return url[:end]


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|&])", r"\\\1", text)


def _is_web(url: str) -> bool:
    return url.lower().startswith(("http://", "https://", "www.", "//"))


def _is_local(url: str) -> bool:
    """A place in the report itself, or a mail address: nothing to have been seen."""
    decoded = html.unescape(url).replace("\\", "").lower()
    # The last is the beginning of our own mark, which the first look put into an attribute.
    return not decoded or decoded.startswith(("#", "mailto:", MARK.partition(" ")[0]))
