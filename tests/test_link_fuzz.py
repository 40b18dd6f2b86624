"""No link to an address that nobody saw is left in any common Markdown renderer."""

from collections.abc import Generator, Iterable
from contextlib import closing
from itertools import islice
from random import Random

import pytest

from gemini_cli_mcp.json_values import JsonObject
from gemini_cli_mcp.research.citation_gate import check_citations
from gemini_cli_mcp.research.markdown_splitter import MarkdownSplitter
from gemini_cli_mcp.server.pagination import paginate
from tests.support.link_fuzz import find_failures
from tests.support.markdown_fragments import REDIRECT, SEEN
from tests.support.markdown_fuzz import ALLOWED, LEDGER, matrix, reports
from tests.support.markdown_renderers import RENDERERS, MarkdownRenderers, needs_renderers

pytestmark = needs_renderers
IN_HTML = [name for name in RENDERERS if name != "remark without HTML"]


@pytest.fixture(scope="module")
def renderers() -> Generator[MarkdownRenderers]:
    with closing(MarkdownRenderers()) as started:
        yield started


def check(texts: Iterable[str], renderers: MarkdownRenderers) -> None:
    for failure in find_failures(texts, renderers):
        raise AssertionError(str(failure))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_reports_leak_no_link(renderers: MarkdownRenderers, seed: int) -> None:
    check(reports(seed, 150), renderers)


def test_a_slice_of_the_matrix_leaks_no_link(renderers: MarkdownRenderers) -> None:
    check(islice(matrix(), 0, None, 7), renderers)


@pytest.mark.long
def test_the_whole_matrix_leaks_no_link(renderers: MarkdownRenderers) -> None:
    check(matrix(), renderers)


def test_the_same_seed_makes_the_same_reports() -> None:
    assert list(reports(5, 20)) == list(reports(5, 20)) != list(reports(6, 20))


@pytest.mark.parametrize(
    ("text", "found_by"),
    [
        ("[x](https://evil.com)", RENDERERS),
        ("www.evil.com", RENDERERS),
        ("[x](notes.md)", RENDERERS),
        ("[x](https://seen.example@evil.com)", RENDERERS),
        (f"<{REDIRECT}invented>", RENDERERS),
        ("//evil.com/a", ["markdown-it", "markdown-it 14"]),
        ("evil.com", ["markdown-it", "markdown-it 14"]),
        ("xmpp:a@evil.com", ["marked"]),
        ("<a href=' //evil.com'>x</a>", IN_HTML),
        ('<img srcset="https://seen.example/a 1x, //evil.com/b 2x">', IN_HTML),
        ('<p style="background: u\\72l(//evil.com)">x</p>', IN_HTML),
        ("<style>@import '//evil.com';</style>", IN_HTML),
        ('<meta http-equiv=refresh content="0;url=//evil.com">', IN_HTML),
        ("<svg><a xlink:href='//evil.com'>x</a></svg>", IN_HTML),
        ('<iframe srcdoc="<a href=//evil.com>x</a>"></iframe>', IN_HTML),
        ("<p onclick='open()'>x</p>", IN_HTML),
        ("<script>open()</script>", IN_HTML),
        ("<a href='javascript:open()'>x</a>", IN_HTML),
    ],
)
def test_a_leak_is_found(renderers: MarkdownRenderers, text: str, found_by: Iterable[str]) -> None:
    assert {leak.renderer for leak in renderers.leaks([text], ALLOWED)} == set(found_by)


@pytest.mark.parametrize(
    "text",
    [
        f"[x]({SEEN}) {SEEN} <{REDIRECT}> https://science.nasa.gov/x",
        "[x](#part) a@evil.com [mail](mailto:a@evil.com)",
        "Words[^1] and no link.\n\n[^1]: A note with words.",
        "`https://evil.com`\n\n```\n[x](https://evil.com)\n```",
    ],
)
def test_what_is_no_leak_is_not_reported(renderers: MarkdownRenderers, text: str) -> None:
    assert renderers.leaks([text], ALLOWED) == []


def long_report(seed: int) -> str:
    """Many hostile reports as one behind the gate, and blocks that are too long for one part."""
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
    report = long_report(1)
    payload: JsonObject = {"success": True, "result": report, "metadata": {}}
    texts: list[str] = []
    offset = 0
    while True:
        part = paginate(payload, "id", offset)
        texts.append(part["result"])
        if "next_offset" not in part:
            break
        offset = part["next_offset"]
    parts = MarkdownSplitter(report)
    random = Random(1)
    for _ in range(25):  # a client may ask for any place
        start = random.randrange(len(report))
        texts.append(parts.extract(start, min(len(report), start + 3000)))

    assert len(texts) > 27
    assert renderers.leaks(texts, ALLOWED) == []
