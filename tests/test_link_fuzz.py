"""Checked reports contain no link to an unseen address in any common Markdown renderer."""

from collections.abc import Generator, Iterable
from contextlib import closing
from itertools import islice
from random import Random

import pytest

from gemini_cli_mcp.research.citation_gate import check_citations
from gemini_cli_mcp.research.markdown_splitter import MarkdownSplitter
from gemini_cli_mcp.server.pagination import paginate
from tests.support import Result
from tests.support.link_fuzz import find_failures
from tests.support.markdown_fragments import REDIRECT, SEEN
from tests.support.markdown_fuzz import ALLOWED, LEDGER, matrix, reports
from tests.support.markdown_renderers import RENDERERS, MarkdownRenderers, needs_renderers
from tests.support.reports import deep_search_result

pytestmark = needs_renderers
HTML_RENDERERS = [name for name in RENDERERS if name != "remark without HTML"]


@pytest.fixture(scope="module")
def renderers() -> Generator[MarkdownRenderers]:
    with closing(MarkdownRenderers()) as instance:
        yield instance


def assert_no_leaks(texts: Iterable[str], renderers: MarkdownRenderers) -> None:
    for failure in find_failures(texts, renderers):
        raise AssertionError(str(failure))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_reports_leak_no_link(renderers: MarkdownRenderers, seed: int) -> None:
    assert_no_leaks(reports(seed, 150), renderers)


def test_a_slice_of_the_matrix_leaks_no_link(renderers: MarkdownRenderers) -> None:
    assert_no_leaks(islice(matrix(), 0, None, 7), renderers)


@pytest.mark.long
def test_the_whole_matrix_leaks_no_link(renderers: MarkdownRenderers) -> None:
    assert_no_leaks(matrix(), renderers)


def test_the_same_seed_generates_the_same_reports() -> None:
    assert list(reports(5, 20)) == list(reports(5, 20)) != list(reports(6, 20))


@pytest.mark.parametrize(
    ("text", "leaking_renderers"),
    [
        ("[x](https://evil.com)", RENDERERS),
        ("www.evil.com", RENDERERS),
        ("[x](notes.md)", RENDERERS),
        ("[x](https://seen.example@evil.com)", RENDERERS),
        (f"<{REDIRECT}invented>", RENDERERS),
        ("//evil.com/a", ["markdown-it", "markdown-it 14"]),
        ("evil.com", ["markdown-it", "markdown-it 14"]),
        ("xmpp:a@evil.com", ["marked"]),
        ("<a href=' //evil.com'>x</a>", HTML_RENDERERS),
        ('<img srcset="https://seen.example/a 1x, //evil.com/b 2x">', HTML_RENDERERS),
        ('<p style="background: u\\72l(//evil.com)">x</p>', HTML_RENDERERS),
        ("<style>@import '//evil.com';</style>", HTML_RENDERERS),
        ('<meta http-equiv=refresh content="0;url=//evil.com">', HTML_RENDERERS),
        ("<svg><a xlink:href='//evil.com'>x</a></svg>", HTML_RENDERERS),
        ('<iframe srcdoc="<a href=//evil.com>x</a>"></iframe>', HTML_RENDERERS),
        ("<p onclick='open()'>x</p>", HTML_RENDERERS),
        ("<script>open()</script>", HTML_RENDERERS),
        ("<a href='javascript:open()'>x</a>", HTML_RENDERERS),
    ],
)
def test_a_leak_is_detected_in_every_affected_renderer(
    renderers: MarkdownRenderers, text: str, leaking_renderers: Iterable[str]
) -> None:
    assert {leak.renderer for leak in renderers.leaks([text], ALLOWED)} == set(leaking_renderers)


@pytest.mark.parametrize(
    "text",
    [
        f"[x]({SEEN}) {SEEN} <{REDIRECT}> https://science.nasa.gov/x",
        "[x](#part) a@evil.com [mail](mailto:a@evil.com)",
        "Words[^1] and no link.\n\n[^1]: A note with words.",
        "`https://evil.com`\n\n```\n[x](https://evil.com)\n```",
    ],
)
def test_allowed_links_and_code_are_not_reported_as_leaks(
    renderers: MarkdownRenderers, text: str
) -> None:
    assert renderers.leaks([text], ALLOWED) == []


def make_long_report(seed: int) -> str:
    """Return one checked report of many hostile reports and of blocks too long for one part."""
    code = "[x](https://evil.com/a)\n" * 1500
    items = "- item `https://evil.com/a`\n  ```\n  https://evil.com/a\n  ```\n" * 500
    rows = "| a | `https://evil.com/a` |\n" * 1000
    quoted = "> ```\n" + "> https://evil.com/a\n" * 1500 + "> ```"
    spans = "words `https://evil.com/a` " * 1500
    hostile = "\n\n".join(reports(seed, 150))
    table = f"| h | i |\n|---|---|\n{rows}"
    whole = f"```py\n{code}```\n\n{items}\n\n{table}\n\n{quoted}\n\n{spans}\n\n{hostile}"
    return check_citations(whole, LEDGER).text


def test_no_part_of_a_long_report_leaks_a_link(renderers: MarkdownRenderers) -> None:
    report = make_long_report(1)
    result = deep_search_result(report)
    texts: list[str] = []
    offset = 0
    while True:
        part: Result = paginate(result, "id", offset)
        texts.append(part["result"])
        if "next_offset" not in part:
            break
        offset = part["next_offset"]
    splitter = MarkdownSplitter(report)
    random = Random(1)
    for _ in range(25):  # a client may request any offset
        start = random.randrange(len(report))
        texts.append(splitter.extract(start, min(len(report), start + 3000)))

    assert len(texts) > 27
    assert renderers.leaks(texts, ALLOWED) == []
