"""The evidence ledger of a run, and the citation gate that checks every link of a report."""

import html
import json
import re
import time
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from gemini_cli_mcp.errors import ExecutionFailed
from gemini_cli_mcp.providers.base import Reply
from gemini_cli_mcp.research.citation_gate import UNVERIFIED_MARK, CitationCounts, check_citations
from gemini_cli_mcp.research.evidence import Ledger, canonical_url, source_domain
from gemini_cli_mcp.research.markdown_writer import rewrite_links
from gemini_cli_mcp.types import RecordedFetch, RecordedSearch, Source
from tests.support import REDIRECT, ROOT, Stub, model_answer, search_with_sources

SEEN = "https://example.org/page"
SAME_SITE = "https://www.nasa.gov/other"
FAKE = "https://invented.example/x"
REPLY = Reply(
    "",
    None,
    "ledger",
    searches=(
        RecordedSearch(
            "one", sources=(Source(REDIRECT + "a", "nasa.gov"), Source(SEEN, "Example"))
        ),
        RecordedSearch("two", error="500"),
        RecordedSearch("one", sources=(Source(REDIRECT + "a", "nasa.gov"),)),
    ),
    fetches=(
        RecordedFetch(pages=(Source("https://fetched.example/p?id=1", ""),)),
        RecordedFetch("blocked"),
    ),
)
LEDGER = Ledger.from_replies(REPLY)


def gate(text: str) -> str:
    return check_citations(text, LEDGER).text


def test_the_ledger_lists_sources_queries_and_errors_in_order() -> None:
    urls = [source.url for source in LEDGER.sources]

    assert urls == [REDIRECT + "a", SEEN, "https://fetched.example/p?id=1"]
    assert LEDGER.queries == ["one", "two"]
    assert LEDGER.errors == ["500", "blocked"]
    assert LEDGER.has_sources
    assert not LEDGER.every_search_failed


@pytest.mark.parametrize(
    ("url", "status"),
    [
        (SEEN, "seen"),
        (REDIRECT + "a", "seen"),
        ("HTTP://www.Example.org:443/page/?utm_source=x&utm_medium=y#part", "seen"),
        ("https://example.org/p%61ge", "seen"),
        ("www.example.org/page", "seen"),
        ("https://fetched.example/p?id=1", "seen"),
        ("https://fetched.example/p?id=2", "domain"),
        ("https://nasa.gov/anything", "domain"),
        ("https://science.nasa.gov/x", "domain"),
        ("https://example.org/Page", "domain"),
        (FAKE, "unseen"),
        ("https://notnasa.gov/", "unseen"),
        ("https://nasa.gov.evil.example/", "unseen"),
        ("https://gov/", "unseen"),
        (REDIRECT + "invented", "unseen"),
        ("https://[broken", "unseen"),
        ("https://example.org:99999/page", "unseen"),
        ("", "unseen"),
    ],
)
def test_link_status_depends_on_the_sources_in_the_ledger(url: str, status: str) -> None:
    assert LEDGER.link_status(url) == status


@pytest.mark.parametrize(
    ("url", "variant"),
    [
        ("https://例え.jp/道", "https://xn--r8jz45g.jp/%E9%81%93"),
        ("https://a.org", "http://www.a.org/"),
        ("https://a.org/?gclid=1&q=2", "https://a.org?q=2"),
    ],
)
def test_spellings_of_one_url_have_the_same_canonical_form(url: str, variant: str) -> None:
    assert canonical_url(url) == canonical_url(variant)


@pytest.mark.parametrize(
    ("source", "domain"),
    [
        (Source(REDIRECT + "x", "www.Nasa.gov"), "nasa.gov"),
        (Source(REDIRECT + "x", "A title, not a domain"), ""),
        (Source("https://www.who.int/x", "WHO"), "who.int"),
    ],
)
def test_the_domain_of_a_source_comes_from_its_url_or_title(source: Source, domain: str) -> None:
    assert source_domain(source) == domain


@pytest.mark.parametrize(
    "text",
    [
        f"A fact ([nasa.gov]({REDIRECT}a)) and [another]({SAME_SITE}).",
        f"<{SEEN}> and (<{SEEN}>).",
        "[chapter](#chapter), [mail](mailto:a@b.org), <mailto:a@b.org>, <a@b.org>, a@b.org",
        f"A claim.[^1]\n\n[^1]: Example, <{SEEN}>\n",
        f"- item [x]\n- [ ] todo\n- array[0][1]\n\n| a | [b]({SEEN}) |",
        "Marks [1] and [2, 3], $a_1 < b$, \\( x_1 \\), AT&T, a < b > c, &lt;b&gt;, 5 \\* 3, C:\\d",
        "H<sub>2</sub>O<br>next, 天空是蓝色的, \u05e9\u05dc\u05d5\u05dd",
        "*a*_b_ **c** ~~d~~ `e` ``f ` g`` ***h*** \\\nhard",
        "> quote with `code`\n>\n> - list in it [1]\n>   - nested",
        "1. one [1]\n\n2. two\n\n   loose",
        "\U0001f468\u200d\U0001f469\u200d\U0001f467 [1] \u0915\u094d\u200d\u0937",
    ],
)
def test_known_links_and_ordinary_text_are_unchanged(text: str) -> None:
    assert gate(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"[a]({SAME_SITE} 'title')", f"[a]({SAME_SITE})"),
        (f"At {SEEN}, and ({SEEN}).", f"At <{SEEN}>, and (<{SEEN}>)."),
        (f"See [the page][1].\n\n[1]: {SEEN} 'Title'\n", f"See [the page]({SEEN}).\n"),
        (f"Note[^a b] [^1]\n\n[^1]: {SEEN}", f"Note[^a b] [^1]\n\n[^1]: See here: <{SEEN}>"),
        ("[wiki](https://nasa.gov/Sky_(blue))", "[wiki](https://nasa.gov/Sky_%28blue%29)"),
        ("[w](https://nasa.gov/空)", "[w](https://nasa.gov/%E7%A9%BA)"),
        (f"（见{SEEN}）。更多：{SEEN}。", f"（见<{SEEN}>）。更多：<{SEEN}>。"),
        ("www.nasa.gov/x", "<https://www.nasa.gov/x>"),
        (f"![chart]({SEEN})", f"[chart]({SEEN})"),
        (f"{SEEN},{SEEN}/2", f"<{SEEN}>,<{SEEN}/2>"),
        ("~~~py x\na\n~~~", "```py\na\n```"),
        ("~~~\n```\n~~~", "````\n```\n````"),
        ("    a = `b`", "```\na = `b`\n```"),
        (
            "evil.com, Node.js, nasa.gov, v1.2, e.g. this",
            "evil\\.com, Node\\.js, nasa.gov, v1.2, e.g. this",
        ),
        ("<b>bold</b> & &amp;", "&lt;b>bold&lt;/b> & &amp;"),
        ("| a |\n|:-|\n| `x\\|y` \\| z |", "| a |\n| :--- |\n| `x\\|y` \\| z |"),
        ("Head [1]\n===\ntext", "# Head [1]\n\ntext"),
        ("[^e] x[^e]\n\n[^e]:   \n", "x\n"),
        ("so\u00adft ze\u200bro \u202ebidi\u202c\x0bline\u2028end", "soft zero bidi line end"),
        ("[1]: no definition at all", "\\[1]: no definition at all"),
    ],
)
def test_equivalent_markdown_is_normalized(text: str, expected: str) -> None:
    assert gate(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"A [title]({FAKE}).", f"A title {UNVERIFIED_MARK}."),
        (f"A [title]({FAKE} 'x') b", f"A title {UNVERIFIED_MARK} b"),
        (f"A [title](<{FAKE}>)", f"A title {UNVERIFIED_MARK}"),
        (f"![chart]({FAKE}.png)", f"chart {UNVERIFIED_MARK}"),
        (f"[{FAKE}]({FAKE})", UNVERIFIED_MARK),
        (f"[see {FAKE} here]({SEEN})", f"[example.org]({SEEN})"),
        (f"[**b** [n]]({FAKE})", f"**b** [n] {UNVERIFIED_MARK}"),
        ("[x](javascript:alert(1))", f"x {UNVERIFIED_MARK}"),
        ("[x](data:text/html;base64,AAAA)", f"x {UNVERIFIED_MARK}"),
        ("[x](//invented.example/y)", f"x {UNVERIFIED_MARK}"),
        ("[x](invented.example/y)", f"x {UNVERIFIED_MARK}"),
        ("[file](notes.md)", f"file {UNVERIFIED_MARK}"),
        (f"<{FAKE}>", UNVERIFIED_MARK),
        ("<javascript:alert(1)>", UNVERIFIED_MARK),
        (f"At {FAKE}, they say.", f"At {UNVERIFIED_MARK}, they say."),
        (f"({FAKE})", f"({UNVERIFIED_MARK})"),
        (f"**{FAKE}**", f"**{UNVERIFIED_MARK}**"),
        ("see www.invented.example/a.", f"see {UNVERIFIED_MARK}."),
        (
            f"[title][a] and [a]\n\n[a]: {FAKE}\n",
            f"title {UNVERIFIED_MARK} and a {UNVERIFIED_MARK}\n",
        ),
        (f"A claim.[^1]\n\n[^1]: {FAKE}\n", f"A claim.[^1]\n\n[^1]: {UNVERIFIED_MARK}\n"),
        (f'<a href="{FAKE}">x</a>', f'&lt;a href="{UNVERIFIED_MARK}">x&lt;/a>'),
        (f"天空（{FAKE}）是蓝色的", f"天空（{UNVERIFIED_MARK}）是蓝色的"),
        (f"见{FAKE}。更多", f"见{UNVERIFIED_MARK}。更多"),
        (f"[标题]({FAKE})更多", f"标题 {UNVERIFIED_MARK}更多"),
        ("https://invented.example/路径", f"{UNVERIFIED_MARK}路径"),
        (f"[a]({SEEN})[b]({FAKE})", f"[a]({SEEN})b {UNVERIFIED_MARK}"),
        (f"[outer [inner]({FAKE})]({SEEN})", rf"\[outer inner {UNVERIFIED_MARK}\](<{SEEN}>)"),
        ("a@www.b.org, 1.www.2", f"a@{UNVERIFIED_MARK}, 1.{UNVERIFIED_MARK}"),
    ],
)
def test_invented_links_are_replaced_with_the_unverified_mark(text: str, expected: str) -> None:
    assert gate(text) == expected


@pytest.mark.parametrize(
    "code",
    [
        f"```sh\ncurl {FAKE}\n```",
        f"`curl {FAKE}`",
        f"``a ` {FAKE}``",
    ],
)
def test_urls_in_code_are_kept_and_urls_around_it_are_checked(code: str) -> None:
    assert gate(f"{FAKE}\n\n{code}") == f"{UNVERIFIED_MARK}\n\n{code}"


def test_each_url_is_counted_once() -> None:
    text = (
        f"[a]({SEEN}) {SEEN}#x [b]({SAME_SITE}) [c]({FAKE}) {FAKE}/ "
        "www.invented.example/x [d](#top)"
    )

    checked = check_citations(text, LEDGER)

    assert checked.citations == CitationCounts(total=3, seen=1, domain=1, unseen=1)
    assert "invented.example" not in checked.text


REPEATED_FRAGMENTS = [
    *("[", "](", "[a](", "`", "` ``", "```\n", "<a:", "[a]: b\n", "http://a ", "((", "![", "]["),
    *("\\. https://a.b/x ", "\\."),
    *("[a%d]: b\n`c`\n\n", "\\", "x", "//a.b ", "a.com ", "xmpp:", "> ", "  - a\n", "[^1]: x\n"),
]


@pytest.mark.parametrize("fragment", REPEATED_FRAGMENTS)
@pytest.mark.timeout(60)  # takes a second or two; quadratic time would take minutes
def test_hostile_text_is_checked_in_linear_time(fragment: str) -> None:
    def measure_seconds(size: int) -> float:
        count = size // len(fragment)
        text = "".join(fragment % n for n in range(count)) if "%d" in fragment else fragment * count
        started = time.process_time()
        check_citations(text, LEDGER)
        return time.process_time() - started

    measure_seconds(1_000)
    small, large = (min(measure_seconds(size) for _ in range(3)) for size in (10_000, 40_000))

    assert large < 10 * small + 0.1  # 4 times the input; quadratic time would be 16 times


def test_a_block_with_too_many_brackets_becomes_plain_text() -> None:
    text = f"[x]({SEEN}) " * 700

    assert gate(text).startswith(rf"\[x\](<{SEEN}>) \[x\](")


def test_an_oversized_report_is_rejected() -> None:
    with pytest.raises(ExecutionFailed, match="2,000,001 characters"):
        gate("x" * 2_000_001)


def test_a_large_report_is_checked_to_its_end() -> None:
    text = "word " * 100_000 + f"\n\n[x]({FAKE})"

    assert gate(text).endswith(f"word \n\nx {UNVERIFIED_MARK}")


@pytest.mark.parametrize(
    ("domain", "url", "status"),
    [
        ("business.example", "https://www.busineß.example/x", "unseen"),
        ("xn--busine-gta.example", "https://busineß.example/x", "domain"),
        ("github.io", "https://github.io/about", "domain"),
        ("github.io", "https://evil.github.io/", "unseen"),
        ("co.uk", "https://evil.co.uk/", "unseen"),
        ("bbc.co.uk", "https://news.bbc.co.uk/1", "domain"),
        ("google.com", "https://www.google.com/about", "domain"),
        ("google.com", "https://www.google.com/url?q=https://evil.com", "unseen"),
        ("google.com", "https://www.google.com/url?sa=t", "unseen"),
        ("google.com", "https://www.google.com/amp/s/evil.com", "unseen"),
        ("google.com", REDIRECT + "invented", "unseen"),
        ("google.com", "https://x.vertexaisearch.cloud.google.com/y", "unseen"),
        ("example.com", "https://example.com/out?to=%2F%2Fevil.com", "unseen"),
        ("example.com", "https://xn--ls8h1.example.com/", "unseen"),
        ("example.com", "https://example.com/out?https://evil.com/", "unseen"),
        ("example.com", "https://example.com/out/https://evil.com", "unseen"),
        ("example.com", "https://example.com/?u=https%253A%252F%252Fevil.com", "unseen"),
        ("example.com", "https://example.com/?f=https://example.com/doc.pdf", "domain"),
        ("example.com", "https://example.com/?q=//comment", "domain"),
        ("archive.org", "https://web.archive.org/web/2020/https://evil.com/", "domain"),
        ("google.com", "https://www.google.com/x/../url?q=http:evil.com", "unseen"),
        ("google.com", "https://www.google.com/%2e/url?sa=t", "unseen"),
        ("google.com", "https://sites.google.com/view/evil", "unseen"),
        ("wordpress.com", "https://evil.wordpress.com/", "unseen"),
    ],
)
def test_a_source_domain_covers_only_its_own_site(domain: str, url: str, status: str) -> None:
    source = Source(REDIRECT + "one", domain)
    ledger = Ledger.from_replies(
        Reply("", None, "ledger", searches=(RecordedSearch("q", sources=(source,)),))
    )

    assert ledger.link_status(url) == status


async def test_seen_same_domain_and_invented_links_are_counted(stub: Stub) -> None:
    text = f"[seen]({REDIRECT}nasa) [near](https://nasa.org/x) [invented]({FAKE})"
    stub.plays({"text": model_answer(text), "searches": [search_with_sources("blue sky", "nasa")]})

    result = await stub.search()

    assert result["metadata"]["citations"] == {"total": 3, "seen": 1, "domain": 1, "unseen": 1}
    assert result["result"] == (
        f"[seen]({REDIRECT}nasa) [near](https://nasa.org/x) invented {UNVERIFIED_MARK}"
    )


@pytest.mark.parametrize("turn", [{"record": False}, {"format": "text"}])
async def test_without_a_ledger_the_text_is_unchanged(stub: Stub, turn: dict[str, object]) -> None:
    stub.plays({"text": model_answer(f"[invented]({FAKE})"), **turn})

    result = await stub.search()

    assert result["metadata"]["citations"] is None
    assert result["result"] == f"[invented]({FAKE})"
    assert result["metadata"]["note"].startswith("Nothing was checked: ")


async def test_a_note_says_that_no_search_was_made(stub: Stub) -> None:
    stub.plays({"text": model_answer()})

    metadata = (await stub.search())["metadata"]

    assert (metadata["grounded"], metadata["evidence"]) == (False, "ledger")
    assert metadata["note"] == "No web search was made, so the text is from the model's memory."


async def test_invented_links_are_removed_from_model_refusals(stub: Stub) -> None:
    stub.environ["GEMINI_MCP_MAX_CYCLES"] = "1"
    refusal = {"success": False, "error": f"See [why]({FAKE}) and [this]({REDIRECT}nasa)."}
    stub.plays({"text": json.dumps(refusal), "searches": [search_with_sources("sky", "nasa")]})

    with pytest.raises(ExecutionFailed) as caught:
        await stub.search()

    assert f"See why {UNVERIFIED_MARK} and [this]({REDIRECT}nasa)." in caught.value.message


async def test_invented_links_are_removed_from_search_errors(stub: Stub) -> None:
    stub.plays({"text": model_answer(), "searches": [{"query": "x", "error": f"no, see {FAKE}"}]})

    assert (await stub.search())["metadata"]["note"].endswith(f"Error: no, see {UNVERIFIED_MARK}")


async def test_texts_of_grounded_search_and_web_search_are_checked(stub: Stub) -> None:
    search = {
        **search_with_sources("sky", "nasa"),
        "text": f"Blue[1], says [x]({FAKE}) on evil.com.",
    }
    stub.plays({"text": "whatever", "searches": [search]})

    grounded = await stub.grounded_search("x")
    hits = await stub.web_search("x")

    assert rf"Blue[1], says x {UNVERIFIED_MARK} on evil\.com." in grounded["result"]
    assert hits["summary"] == rf"Blue[1], says x {UNVERIFIED_MARK} on evil\.com."


@pytest.mark.parametrize(
    "text",
    [
        "- ```sh\n  pip install x\n  ```\n\nMore: [paper](https://evil.com/x)",
        "1. x\n   ```sh\n   y\n2. z [t](https://evil.com/x)",
        "a \\`b [t](https://evil.com/x) c\\`",
        "a `b\n \n[t](https://evil.com/x)\n \nc`",
        "- a `b\n- [t](https://evil.com/x)\n- c`",
        "```a`b\n[t](https://evil.com/x)",
        "x\u2028```\n[t](https://evil.com/x)",
        "[t](h&#116;tps://evil.com/x)",
        "[t](https&#58;//evil.com/x)",
        "[t](https\\://evil.com/x)",
        "[t](\\/\\/evil.com/x)",
        "[t](https://evil.com&sol;@nasa.gov/x)",
        "[t](https://evil.com\\@nasa.gov/x)",
        "[t](https://nasa.gov@evil.com/x)",
        "[r]: h&#116;tps://evil.com/x\n\n[r]",
        '<a href="&#104;ttps://evil.com/x">t</a>',
        "[a [b [c] d] e](//evil.com/x)",
        "[te\nxt](//evil.com/x)",
        "[`c`](//evil.com/x)",
        "[t\\]](//evil.com/x)",
        "[t](//evil.com/(a(b)c))",
        "[t][r]\n\n[r]:\n//evil.com/x",
        "> [r]: //evil.com/x\n\n[r]",
        "- [r]: //evil.com/x\n\n[r]",
        "[r]: ftp://evil.com/x\n\n[r]",
        '<a href="//evil.com/x">t</a>',
        "<img src='//evil.com/x.png'>",
        "[![i](//evil.com/x.png)](https://example.org/page)",
        "ftp://evil.com/x",
        "_www.evil.com/x_",
        "https://example.org/page,https://evil.com/x",
        '[t](https://example.org/page "https://evil.com/x")',
        '[t](#a "https://evil.com/x")',
        "| a | b |\n|---|---|\n| `x | [t](h&#116;tps://evil.com/x) |",
        "# Head [t](https&#58;//evil.com/x)",
        "[T](HTTPS://EVIL.COM/x)",
        "http:/[/evil.com/a](./x)",
        "ww[w.evil.com/a](./x)",
    ],
)
def test_the_gate_cannot_be_bypassed_to_link_an_invented_url(text: str) -> None:
    gated = gate(text)

    rendered = MarkdownIt("commonmark").enable("table").render(gated)
    assert (
        "evil.com"
        not in html.unescape(re.sub(r"<code>.*?</code>", "", rendered, flags=re.S)).lower()
    )
    assert UNVERIFIED_MARK in gated or "evil" not in gated.lower()


@pytest.mark.parametrize(
    "text",
    [
        f"https://evil.com[1]({SEEN}) 好",
        f"Seen: [a]({SEEN}) and `code` and <{SEEN}>.\n\n- ```sh\n  curl {FAKE}\n  ```\n\nEnd.",
    ],
)
def test_known_links_next_to_hostile_text_are_kept(text: str) -> None:
    assert SEEN in gate(text)
    assert text.count(FAKE) == gate(text).count(FAKE)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "``[x](https://evil.com/a)` ``[`y`](./p)",
            f"``[x](https://evil.com/a)` `` `y` {UNVERIFIED_MARK}",
        ),
        ("ww[w.evil.ninja/a](./x)", UNVERIFIED_MARK),
        ("[<![img](u) src=x>](https://nasa.gov/x)", "[&lt;img src=x>](https://nasa.gov/x)"),
        ("evil.xn--p1ai evil.com\\-x", "evil\\.xn--p1ai evil\\.com\\-x"),
        ("$`$[x](https://evil.com/a)`", "\\$`$[x](https://evil.com/a)`"),
        ("- [ ] [r]: javascript:x\n\n[r]", "- [ ] \\[r]: javascript:x\n\n[r]"),
        ("x\n[r]: javascript:x", "x\n\\[r]: javascript:x"),
        (f"- See [a]({SEEN})\n\n\u3000\n\nEnd", f"- See [a]({SEEN})\n\nEnd"),
        ("$a<b$ and \\(x<y\\)", "$a<b$ and \\(x<y\\)"),
        ("a[^b] c[^a]\n\n[^b]: one note\n\n[^a]: two notes", None),
        ("### x C\\#\n\n# y C# [1]", None),
        (f"- > a [x]({SEEN})\n\n  > b", None),
        ("- a [1]\n\n[r]: /x\n\n- b", "- a [1]\n\n* b"),
        (f"[![](<y\\>)]({SEEN})", rf"[\!\[\]\(&lt;y\>)]({SEEN})"),
        (f"{'> ' * 30}deep [x]({SEEN})", f"{'> ' * 20}deep [x]({SEEN})"),
        (f"```\n{'- ' * 30}x\n{'> ' * 30}\n```", None),
    ],
)
def test_review_findings_stay_fixed_and_the_gate_is_idempotent(
    text: str, expected: str | None
) -> None:
    assert gate(text) == (text if expected is None else expected)
    assert gate(gate(text)) == gate(text)


def test_a_table_with_too_many_cells_does_not_inflate_the_report() -> None:
    text = ("|x" * 250 + "\n" + "|-" * 250 + "\n" + "x<b>\n" * 300 + "\n") * 3

    assert len(gate(text)) < 3 * len(text)


def test_prose_after_something_like_a_link_definition_is_kept() -> None:
    text = f"[1]: {FAKE} is the paper by Smith, who found 42 %."

    assert gate(text) == rf"\[1]: {UNVERIFIED_MARK} is the paper by Smith, who found 42 %."


DOCUMENTS = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CHANGELOG.md"]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_documents_render_the_same_after_link_rewriting(path: Path) -> None:
    class AllowAll:
        def allowed_url(self, address: str) -> str | None:
            return address

        def allows_host(self, name: str) -> bool:
            return True

    text = path.read_text(encoding="utf-8")
    markdown = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])

    def render(source: str) -> str:
        rendered = " ".join(markdown.render(source).split())
        return re.sub(r'<img src="([^"]*)" alt="([^"]*)" />', r'<a href="\1">\2</a>', rendered)

    assert render(rewrite_links(text, AllowAll(), UNVERIFIED_MARK)) == render(text)
