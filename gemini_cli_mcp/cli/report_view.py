"""A result as people read it: Markdown for files and pipes, or rendered in a terminal.

Both end with the numbered sources, whose addresses can be read and copied.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from markdown_it.token import Token
from rich.console import Console
from rich.markdown import Markdown
from rich.padding import Padding
from rich.style import Style
from rich.text import Text

from gemini_cli_mcp.research.evidence import canonical_url, source_domain, url_host
from gemini_cli_mcp.research.results import (
    DeepSearchResult,
    GroundedResult,
    Result,
    SearchResult,
    WebSearchResult,
)
from gemini_cli_mcp.research.url_finder import find_urls
from gemini_cli_mcp.sanitize import escape_markdown, markdown_link, sanitize_json, truncate_line
from gemini_cli_mcp.types import Hit, Source

GROUNDED_SOURCES = "\n### Sources\n"
"""Where the sources begin in the Markdown of a grounded search; its text cannot contain this."""
GROUNDED_QUERIES = "\n### Search Queries Used\n"
MAX_TITLE_CHARS = 200

_MARK = re.compile(r"\[\d{1,3}\]")
_SOURCES_TITLE = re.compile(r"\W*(?:sources|references)\W*", re.IGNORECASE)


@dataclass(frozen=True)
class NumberedSource:
    """A source as listed below a report."""

    label: str
    title: str
    url: str
    is_cited: bool


@dataclass(frozen=True)
class SourceList:
    """The numbered sources of a report."""

    heading: str
    sources: Sequence[NumberedSource]


def report_markdown(result: Result) -> str:
    """Return the Markdown of a result, for files and pipes."""
    match result:
        case SearchResult() | DeepSearchResult():
            source_list = number_sources(Markdown(result.report).parsed, result.metadata.sources)
            return _join_markdown(result.report, _source_markdown(source_list))
        case GroundedResult():
            text, _, rest = result.text.partition(GROUNDED_SOURCES)
            _, heading, queries = rest.rpartition(GROUNDED_QUERIES)
            return _join_markdown(
                text, _source_markdown(_grounded_sources(result)), [heading.strip(), "", queries]
            )
        case WebSearchResult():
            return _hits_markdown(result)


def print_report(result: Result, console: Console, secrets: Sequence[str]) -> None:
    """Render a result in a terminal."""
    match result:
        case SearchResult() | DeepSearchResult():
            markdown = Markdown(_clean(result.report, secrets))
            source_list = number_sources(markdown.parsed, result.metadata.sources)
            _mark_links(markdown.parsed, source_list.sources)
            console.print(markdown)
            _print_sources(source_list, console, secrets)
        case GroundedResult():
            text = result.text.partition(GROUNDED_SOURCES)[0]
            console.print(Markdown(_clean(text, secrets)))
            _print_sources(_grounded_sources(result), console, secrets)
            console.print(Text("\nSearch queries used", "bold"))
            for query in result.queries:
                console.print(Text(f"  “{_line(query, secrets)}”"), soft_wrap=True)
        case WebSearchResult():
            console.print(Markdown(_clean(result.summary, secrets)))
            for number, hit in enumerate(result.hits, 1):
                _print_hit(number, hit, console, secrets)


def number_sources(tokens: Sequence[Token], sources: Sequence[Source]) -> SourceList:
    """Number the addresses that a report cites, in their order, then all other sources.

    A report may have marks such as [1], or a list of sources, of its own: then the labels and the
    heading differ from those.
    """
    titles = {canonical_url(source.url): _title(source) for source in sources}
    cited: dict[str, str] = {}
    for url in _cited_urls(tokens):
        if url.lower().startswith(("http://", "https://")):
            cited.setdefault(canonical_url(url), url)
    others = [source.url for source in sources if canonical_url(source.url) not in cited]
    inline_tokens = [child for token in tokens for child in token.children or ()]
    texts = [child.content for child in inline_tokens if child.type == "text"]
    prefix = "S" if any(_MARK.search(text) for text in texts) else ""
    has_own_list = any(_SOURCES_TITLE.fullmatch(text) for text in texts)
    return SourceList(
        "All sources" if has_own_list else "Sources",
        [
            NumberedSource(
                f"{prefix}{number}",
                titles.get(canonical_url(url)) or url_host(url),
                url,
                number <= len(cited),
            )
            for number, url in enumerate((*cited.values(), *others), 1)
        ],
    )


def _grounded_sources(result: GroundedResult) -> SourceList:
    """Return the sources in the order of the marks in the text."""
    sources = enumerate(result.sources, 1)
    return SourceList(
        "Sources", [NumberedSource(str(n), _title(item), item.url, True) for n, item in sources]
    )


def _cited_urls(tokens: Sequence[Token]) -> Iterator[str]:
    for token in tokens:
        for child in token.children or ():
            if child.type == "link_open":
                yield str(child.attrs.get("href", ""))
            elif child.type == "text":
                yield from (found.url for found in find_urls(child.content))


def _mark_links(tokens: Sequence[Token], sources: Sequence[NumberedSource]) -> None:
    """Add the label of its source behind each link: in a terminal, the address is not visible."""
    labels = {canonical_url(source.url): source.label for source in sources}
    for token in tokens:
        if token.children is None:
            continue
        children: list[Token] = []
        url = ""
        for child in token.children:
            children.append(child)
            if child.type == "link_open":
                url = str(child.attrs.get("href", ""))
            elif child.type == "link_close" and (label := labels.get(canonical_url(url))):
                children.append(Token("text", "", 0, content=f" [{label}]"))
        token.children = children


def _join_markdown(text: str, *sections: Sequence[str]) -> str:
    return "\n\n".join([text.rstrip(), *("\n".join(lines) for lines in sections if lines)])


def _source_markdown(source_list: SourceList) -> list[str]:
    if not source_list.sources:
        return []
    lines = [
        f"{source.label}. {markdown_link(source.title, source.url)}"
        f"{'' if source.is_cited else ' (found, not cited)'}"
        for source in source_list.sources
    ]
    if not source_list.sources[0].label.isdigit():  # Markdown has no lists with such labels
        lines = [f"- {line}" for line in lines]
    return [f"## {source_list.heading}", "", *lines]


def _print_sources(source_list: SourceList, console: Console, secrets: Sequence[str]) -> None:
    for heading, is_cited in ((source_list.heading, True), ("Found, but not cited", False)):
        listed = [source for source in source_list.sources if source.is_cited == is_cited]
        if listed:
            console.print(Text(f"\n{heading}", "bold"))
        for source in listed:
            title = _line(source.title, secrets)
            console.print(Text(f"  [{source.label}] {title}"), soft_wrap=True)
            _print_url(source.url, console, secrets)


def _print_hit(number: int, hit: Hit, console: Console, secrets: Sequence[str]) -> None:
    console.print(Text(f"\n  [{number}] {_line(hit.title, secrets)}", "bold"), soft_wrap=True)
    _print_url(hit.url, console, secrets)
    details = [text for text in (hit.source, hit.date) if text and text != hit.title]
    if details:
        console.print(Text(f"      {_line(' · '.join(details), secrets)}", "dim"), soft_wrap=True)
    if hit.snippet:
        console.print(Padding(Text(_clean(hit.snippet, secrets)), (0, 0, 0, 6)))


def _print_url(url: str, console: Console, secrets: Sequence[str]) -> None:
    """Print the whole address on a line of its own, so that it can be copied; also as a link."""
    text = _clean(url, secrets)
    # Invisible characters could make another address of it, at least for the eye.
    text = "".join(char if char.isprintable() and char != " " else quote(char) for char in text)
    console.print(Text("      ").append(text, Style(color="cyan", link=text)), soft_wrap=True)


def _hits_markdown(result: WebSearchResult) -> str:
    """Format the hits of a web search as a Markdown list."""
    lines = [result.summary, ""]
    for number, hit in enumerate(result.hits, 1):
        details = " · ".join(escape_markdown(text) for text in (hit.source, hit.date) if text)
        lines.append(f"{number}. {markdown_link(hit.title, hit.url)} ({details})")
        if hit.snippet:
            lines.append(f"   {escape_markdown(hit.snippet)}")
    return "\n".join(lines)


def _title(source: Source) -> str:
    return source.title or source_domain(source) or url_host(source.url)


def _line(text: str, secrets: Sequence[str]) -> str:
    return truncate_line(_clean(text, secrets), MAX_TITLE_CHARS)


def _clean(text: str, secrets: Sequence[str]) -> str:
    return str(sanitize_json(text, secrets))
