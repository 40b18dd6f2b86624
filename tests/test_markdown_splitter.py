"""Each part of a split report renders the same alone as it does in the whole report."""

import pytest
from markdown_it import MarkdownIt

from gemini_cli_mcp.research.markdown_splitter import MarkdownSplitter

MARKDOWN = MarkdownIt("commonmark").enable("table")
CODE = "Before.\n\n```py\n" + "".join(f"print({n})\n" for n in range(50)) + "```\n\nAfter."
TABLE = "| n | `x` |\n| --- | :---: |\n" + "".join(f"| {n} | y |\n" for n in range(50))
LIST = "".join(f"- item {n}\n  - nested\n\n    more\n" for n in range(30))


def split(report: str, size: int) -> list[str]:
    splitter, start, parts = MarkdownSplitter(report), 0, list[str]()
    while start < len(report):
        end = splitter.find_cut(start, min(len(report), start + size))
        parts.append(splitter.extract(start, end))
        start = end
    return parts


def test_parts_end_between_blocks() -> None:
    report = "One.\n\n- a\n- b\n\n> c\n\n# D\n\nEnd."

    assert split(report, 10) == ["One.\n\n", "- a\n- b\n\n", "> c\n\n# D\n\n", "End."]


def test_a_long_code_block_is_closed_and_reopened_at_each_cut() -> None:
    parts = split(CODE, 120)

    assert len(parts) > 4
    rendered = "".join(MARKDOWN.render(part) for part in parts)
    assert rendered.count('<pre><code class="language-py">') == rendered.count("</code></pre>") > 3
    assert all(f"print({n})\n" in rendered for n in range(50))
    assert rendered.count("print(") == 50


def test_a_long_table_repeats_its_header_in_every_part() -> None:
    parts = split(TABLE, 150)

    assert len(parts) > 3
    assert all(part.startswith("| n | `x` |\n| --- | :---: |\n") for part in parts)
    assert "".join(MARKDOWN.render(part) for part in parts).count("<td>") == 50


def test_a_long_list_is_cut_between_its_items() -> None:
    parts = split(LIST, 200)

    assert len(parts) > 3
    assert all(part.startswith("- item ") for part in parts)
    assert "".join(parts) == LIST


@pytest.mark.parametrize("start", range(1, 60, 3))
def test_a_part_starting_anywhere_does_not_turn_code_into_links(start: int) -> None:
    report = "A `[x](https://evil.com/a) ` b\n\n> ```\n> [y](https://evil.com/b)\n> ```\n\nEnd."

    assert "<a " not in MARKDOWN.render(MarkdownSplitter(report).extract(start, len(report)))
