"""A long report in parts: each means the same alone as in the whole."""

import pytest
from markdown_it import MarkdownIt

from gemini_cli_mcp.research.markdown_splitter import MarkdownSplitter

HTML = MarkdownIt("commonmark").enable("table")
CODE = "Before.\n\n```py\n" + "".join(f"print({n})\n" for n in range(50)) + "```\n\nAfter."
TABLE = "| n | `x` |\n| --- | :---: |\n" + "".join(f"| {n} | y |\n" for n in range(50))
LIST = "".join(f"- item {n}\n  - nested\n\n    more\n" for n in range(30))


def parts_of(report: str, size: int) -> list[str]:
    parts, start, read = MarkdownSplitter(report), 0, list[str]()
    while start < len(report):
        end = parts.find_cut(start, min(len(report), start + size))
        read.append(parts.extract(start, end))
        start = end
    return read


def test_parts_end_between_blocks() -> None:
    report = "One.\n\n- a\n- b\n\n> c\n\n# D\n\nEnd."

    assert parts_of(report, 10) == ["One.\n\n", "- a\n- b\n\n", "> c\n\n# D\n\n", "End."]


def test_code_that_is_too_long_is_closed_and_opened_again() -> None:
    read = parts_of(CODE, 120)

    assert len(read) > 4
    rendered = "".join(HTML.render(part) for part in read)
    assert rendered.count('<pre><code class="language-py">') == rendered.count("</code></pre>") > 3
    assert all(f"print({n})\n" in rendered for n in range(50))
    assert rendered.count("print(") == 50


def test_a_table_that_is_too_long_has_its_head_in_every_part() -> None:
    read = parts_of(TABLE, 150)

    assert len(read) > 3
    assert all(part.startswith("| n | `x` |\n| --- | :---: |\n") for part in read)
    assert "".join(HTML.render(part) for part in read).count("<td>") == 50


def test_a_list_is_cut_between_its_items() -> None:
    read = parts_of(LIST, 200)

    assert len(read) > 3
    assert all(part.startswith("- item ") for part in read)
    assert "".join(read) == LIST


@pytest.mark.parametrize("start", range(1, 60, 3))
def test_a_part_that_begins_anywhere_makes_no_link_of_code(start: int) -> None:
    report = "A `[x](https://evil.com/a) ` b\n\n> ```\n> [y](https://evil.com/b)\n> ```\n\nEnd."

    assert "<a " not in HTML.render(MarkdownSplitter(report).extract(start, len(report)))
