"""What a run really saw, and which of a report's links that covers.

The ledger is made of the provider's own records, never of what the model says. A link in a
report is `seen` if its URL is in the ledger, `domain` if only its site is (search results come
as redirects that carry no more than the site's name), and `unseen` if neither: then the model
made it up, and it is taken out of the text.
"""

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal
from urllib.parse import SplitResult, quote, unquote, urlsplit

from gemini_cli_mcp.models import Fetch, Reply, Search, Source

Standing = Literal["seen", "domain", "unseen"]

MARK = "(unverified source)"
"""Stands in the text where a link was taken out."""

REDIRECTS = "vertexaisearch.cloud.google.com"
_TRACKING = re.compile(r"(?:utm_\w+|gclid|fbclid|msclkid|mc_[ce]id|igshid|ref_src)=")
_DOMAIN = re.compile(r"(?:[\w-]+\.)+[a-zA-Z\u0080-\uffff][\w-]*")

# A URL in running text ends where prose goes on: at blanks, quotes, brackets and any CJK.
_END = r"\s<>\"'`\\\[\]{}|\u2010-\u206f\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\ufe30-\uffef"
_BARE = re.compile(rf"(?:https?://|(?<![\w@./-])www\.)[^{_END}]+", re.IGNORECASE)
_ADDRESS = r"(?:<([^<>\n]*+)>|((?:[^\s()<>]++|\([^\s()]*+\))*+))"
_TARGET = rf"\(\s*+{_ADDRESS}(?:\s++[\"'(][^\n]*?[\"')])?\s*+\)"
_TEXT = r"\[((?:[^\[\]\n]++|\[[^\[\]\n]*+\])*+)\]"
_LINK = re.compile(rf"!?{_TEXT}{_TARGET}")
_AUTOLINK = re.compile(r"<([a-zA-Z][\w+.-]*+:[^\s<>]*+)>")
_DEFINITION = re.compile(
    r"^ {0,3}\[([^\[\]^\n][^\[\]\n]*+)\]:[ \t]*+<?([^\s<>]++)>?[^\n]*+\n?", re.MULTILINE
)
_REFERENCE = re.compile(rf"!?{_TEXT}(?:\[([^\[\]\n]*+)\])?(?![(\[:])")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_TICKS = re.compile(r"`+")


@dataclass(frozen=True)
class Ledger:
    """The searches and pages of a run that its provider's records prove."""

    searches: tuple[Search, ...]
    fetches: tuple[Fetch, ...]

    @classmethod
    def of(cls, reply: Reply) -> "Ledger":
        return cls(reply.searches, reply.fetches)

    @cached_property
    def sources(self) -> list[Source]:
        """Everything that was found or read, in the order first seen."""
        found = (source for search in self.searches for source in search.sources)
        read = (page for fetch in self.fetches for page in fetch.pages)
        return list({source.url: source for source in (*found, *read)}.values())

    @property
    def queries(self) -> list[str]:
        return list(dict.fromkeys(search.query for search in self.searches))

    @property
    def errors(self) -> list[str]:
        """Why searches and fetches failed, where they did."""
        return [call.error for call in (*self.searches, *self.fetches) if call.error]

    @property
    def searched(self) -> bool:
        """Whether a search succeeded with sources."""
        return any(search.sources for search in self.searches)

    @property
    def every_search_failed(self) -> bool:
        return bool(self.searches) and all(search.error for search in self.searches)

    @cached_property
    def _urls(self) -> frozenset[str]:
        return frozenset(canonical(source.url) for source in self.sources)

    @cached_property
    def _domains(self) -> frozenset[str]:
        return frozenset(filter(None, (domain_of(source) for source in self.sources)))

    def standing(self, url: str) -> Standing:
        """How far this URL is covered."""
        if canonical(url) in self._urls:
            return "seen"
        host = _host(url)
        # The redirects' own host is no site: an unknown redirect is an invented one.
        parts = host.split(".") if host and host != REDIRECTS else []
        parents = {".".join(parts[start:]) for start in range(len(parts) - 1)}
        return "domain" if parents & self._domains else "unseen"


@dataclass(frozen=True)
class Checked:
    """A report whose links are all covered, and how they were."""

    text: str
    citations: dict[str, int]
    """total, seen, domain, unseen: each URL counts once."""


def check_citations(report: str, ledger: Ledger) -> Checked:
    """Judge every link of a Markdown report; unseen ones are marked and no links any more."""
    gate = _Gate(ledger)
    unseen = gate.unseen_definitions(report)
    text = _outside_code(report, lambda prose: gate.pass_through(prose, unseen))
    counts = dict.fromkeys(("seen", "domain", "unseen"), 0)
    for standing in gate.judged.values():
        counts[standing] += 1
    return Checked(text, {"total": len(gate.judged), **counts})


class _Gate:
    """Goes through the prose of one report."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.judged: dict[str, Standing] = {}

    def unseen_definitions(self, report: str) -> set[str]:
        """The ids of `[id]: URL` lines whose URL nobody saw."""
        ids: set[str] = set()

        def note(prose: str) -> str:
            for definition in _DEFINITION.finditer(prose):
                if _is_web(definition[2]) and not self._is_covered(definition[2]):
                    ids.add(definition[1].casefold())
            return prose

        _outside_code(report, note)
        return ids

    def pass_through(self, prose: str, unseen_ids: set[str]) -> str:
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

        prose = prose.replace("\0", "")
        prose = _LINK.sub(lambda match: self._link(match, keep), prose)
        prose = _AUTOLINK.sub(lambda match: self._autolink(match, keep), prose)
        prose = _BARE.sub(self._bare, prose)
        return re.sub(r"\0(\d+)\0", lambda match: kept[int(match[1])], prose)

    def _link(self, match: re.Match[str], keep: Callable[[str], str]) -> str:
        text, url = match[1], match[2] or match[3] or ""
        if _is_local(url):
            return keep(match[0])
        if not _is_web(url) or not self._is_covered(url):
            return self._marked(text)
        # The words of a good link may be the address of a bad one.
        shown = (_trimmed(bare) for bare in _BARE.findall(text))
        if all(self._ledger.standing(address) != "unseen" for address in shown):
            return keep(match[0])
        return keep(f"[{_host(url)}]({url})")

    def _autolink(self, match: re.Match[str], keep: Callable[[str], str]) -> str:
        url = match[1]
        if url.lower().startswith("mailto:") or (_is_web(url) and self._is_covered(url)):
            return keep(match[0])
        return MARK

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


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    """The text with `change` done to everything but code, which stays as it is."""
    parts: list[str] = []
    at = 0
    for start, end in _code(text):
        parts += (change(text[at:start]), text[start:end])
        at = end
    return "".join((*parts, change(text[at:])))


def _code(text: str) -> Iterator[tuple[int, int]]:
    """Where the code blocks and code spans of a Markdown text stand, in linear time."""
    fence, at, prose = "", 0, 0
    for line in text.splitlines(keepends=True):
        marks = _FENCE.match(line)
        if not fence and marks:
            yield from _code_spans(text, prose, at)
            fence, prose = marks[1], at
        elif fence and marks and marks[1].startswith(fence) and not line.strip(" `~\r\n"):
            yield prose, at + len(line)
            fence, prose = "", at + len(line)
        at += len(line)
    if fence:
        yield prose, at
    else:
        yield from _code_spans(text, prose, at)


def _code_spans(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Backticks up to the next run of as many, within a paragraph."""
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
        if alike and text.find("\n\n", opened, runs[alike[-1]][0]) < 0:
            index = alike[-1]
            yield begin, runs[index][1]
        index += 1


def _trimmed(url: str) -> str:
    """A bare URL without the punctuation of the sentence around it."""
    while url and (url[-1] in ".,;:!?*_~" or (url[-1] == ")" and url.count(")") > url.count("("))):
        url = url[:-1]
    return url


def _is_web(url: str) -> bool:
    return url.lower().startswith(("http://", "https://", "www.", "//"))


def _is_local(url: str) -> bool:
    """A place in the report itself, or a mail address: nothing to have been seen."""
    scheme = re.match(r"[a-zA-Z][\w+.-]*:", url)
    return not _is_web(url) and (scheme is None or scheme[0].lower() == "mailto:")


def _split(url: str) -> SplitResult | None:
    if url.lower().startswith("www."):
        url = f"https://{url}"
    try:
        parts = urlsplit(url, scheme="https")
        _ = parts.port
    except ValueError:
        return None
    return parts


def _host(url: str) -> str:
    parts = _split(url)
    host = (parts.hostname or "") if parts else ""
    if not host.isascii():
        with contextlib.suppress(UnicodeError):
            host = host.encode("idna").decode()
    return host.rstrip(".").removeprefix("www.")


def canonical(url: str) -> str:
    """The same for every spelling of one address."""
    parts = _split(url.strip())
    if parts is None:
        return url
    port = "" if parts.port in (None, 80, 443) else f":{parts.port}"
    path = quote(unquote(parts.path), safe="/:@!$&'()*+,;=~-._")
    query = "&".join(item for item in parts.query.split("&") if item and not _TRACKING.match(item))
    return f"{_host(url)}{port}{path.rstrip('/')}" + (f"?{query}" if query else "")


def domain_of(source: Source) -> str:
    """The site a source belongs to; a redirect carries it as its title."""
    host = _host(source.url)
    if host != REDIRECTS:
        return host
    title = source.title.strip().lower().removeprefix("www.")
    return title if _DOMAIN.fullmatch(title) else ""
