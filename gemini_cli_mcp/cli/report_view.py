"""A result as people read it: Markdown for files and pipes, or rendered in a terminal.

Both end with the numbered sources, whose addresses can be read and copied.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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

SOURCES_MARKDOWN = "\n### Sources\n"
"""Where the sources begin in the Markdown of a grounded search; its text cannot contain this."""
MAX_TITLE_CHARS = 200


@dataclass(frozen=True)
class NumberedSource:
    """A source as listed below a report."""

    number: int
    title: str
    url: str
    is_cited: bool


def report_markdown(result: Result) -> str:
    """Return the Markdown of a result, for files and pipes."""
    match result:
        case SearchResult() | DeepSearchResult():
            return _with_source_list(result.report, result.metadata.sources)
        case GroundedResult():
            return result.text
        case WebSearchResult():
            return _hits_markdown(result)


def print_report(result: Result, console: Console, secrets: Sequence[str]) -> None:
    """Render a result in a terminal."""
    match result:
        case SearchResult() | DeepSearchResult():
            markdown = Markdown(_clean(result.report, secrets))
            sources = number_sources(markdown.parsed, result.metadata.sources)
            _mark_links(markdown.parsed, sources)
            console.print(markdown)
            _print_sources(sources, console, secrets)
        case GroundedResult():
            text = result.text.partition(SOURCES_MARKDOWN)[0]
            console.print(Markdown(_clean(text, secrets)))
            sources = [
                NumberedSource(number, _title(source), source.url, is_cited=True)
                for number, source in enumerate(result.sources, 1)
            ]
            _print_sources(sources, console, secrets)
            console.print(Text("\nSearch queries used", "bold"))
            for query in result.queries:
                console.print(Text(f"  “{_line(query, secrets)}”"), soft_wrap=True)
        case WebSearchResult():
            console.print(Markdown(_clean(result.summary, secrets)))
            for number, hit in enumerate(result.hits, 1):
                _print_hit(number, hit, console, secrets)


def number_sources(tokens: Sequence[Token], sources: Sequence[Source]) -> list[NumberedSource]:
    """Number the addresses that a report cites, in their order, then all other sources."""
    titles = {canonical_url(source.url): _title(source) for source in sources}
    cited: dict[str, str] = {}
    for url in _cited_urls(tokens):
        if url.lower().startswith(("http://", "https://")):
            cited.setdefault(canonical_url(url), url)
    others = [source.url for source in sources if canonical_url(source.url) not in cited]
    return [
        NumberedSource(
            number, titles.get(canonical_url(url)) or url_host(url), url, number <= len(cited)
        )
        for number, url in enumerate((*cited.values(), *others), 1)
    ]


def _cited_urls(tokens: Sequence[Token]) -> Iterator[str]:
    for token in tokens:
        for child in token.children or ():
            if child.type == "link_open":
                yield str(child.attrs.get("href", ""))
            elif child.type == "text":
                yield from (found.url for found in find_urls(child.content))


def _mark_links(tokens: Sequence[Token], sources: Sequence[NumberedSource]) -> None:
    """Add the number of its source behind each link: in a terminal, the address is not visible."""
    numbers = {canonical_url(source.url): source.number for source in sources}
    for token in tokens:
        if token.children is None:
            continue
        children: list[Token] = []
        url = ""
        for child in token.children:
            children.append(child)
            if child.type == "link_open":
                url = str(child.attrs.get("href", ""))
            elif child.type == "link_close" and (number := numbers.get(canonical_url(url))):
                children.append(Token("text", "", 0, content=f" [{number}]"))
        token.children = children


def _with_source_list(report: str, sources: Sequence[Source]) -> str:
    numbered = number_sources(Markdown(report).parsed, sources)
    if not numbered:
        return report
    lines = [
        f"{source.number}. {markdown_link(source.title, source.url)}"
        f"{'' if source.is_cited else ' (found, not cited)'}"
        for source in numbered
    ]
    return "\n".join((report.rstrip(), "", "## Sources", "", *lines))


def _print_sources(
    sources: Sequence[NumberedSource], console: Console, secrets: Sequence[str]
) -> None:
    for heading, is_cited in (("Sources", True), ("Found, but not cited", False)):
        listed = [source for source in sources if source.is_cited == is_cited]
        if listed:
            console.print(Text(f"\n{heading}", "bold"))
        for source in listed:
            title = _line(source.title, secrets)
            console.print(Text(f"  [{source.number}] {title}"), soft_wrap=True)
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
    return source.title or source_domain(source)


def _line(text: str, secrets: Sequence[str]) -> str:
    return truncate_line(_clean(text, secrets), MAX_TITLE_CHARS)


def _clean(text: str, secrets: Sequence[str]) -> str:
    return str(sanitize_json(text, secrets))
