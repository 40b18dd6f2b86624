"""Rewrite the inline content of a Markdown block so that only allowed URLs are links.

Links are written as `[text](url)` or `<url>` and in no other form; references are resolved and
their definitions dropped. Everything else becomes text, including raw HTML and anything that
renderers would autolink.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from markdown_it import MarkdownIt
from markdown_it.common.utils import unescapeAll
from markdown_it.token import Token

from gemini_cli_mcp.research.evidence import url_host
from gemini_cli_mcp.research.markdown_text import (
    LinkPolicy,
    TextRun,
    TextWriter,
    append_text,
    is_link_free,
)

MAX_DELIMITERS = 2_000
"""Maximum brackets and delimiters of a block; one with more is written as plain text."""

_DELIMITER = re.compile(r"[\[\]()*_~`<&]")

_TAG_START = r"<(?!/?(?i:sub|sup)>|(?i:br) ?/?>)(?=[A-Za-z/!?])"
"""The start of an HTML tag, except for three harmless ones."""
_UNCLOSED_TAG_START = r"(?<!\S)<(?=[A-Za-z])|<(?=[/!?])"
"""The start of an HTML block, which does not need a closing `>`."""
_ALWAYS_ESCAPED = r"`|\\(?=[!-/:-@\[-`{-~]|\Z)|&(?=#?\w+;)|\](?=\()"
"""A backtick, an effective backslash, the start of an entity, the middle of a link."""
_BRACKETS = r"|[\[\]]|(?<=\])\(|!(?=\[)"
"""Anything that could form a link or an image, even in a renderer that misses an escape."""
_DOLLAR = r"|\$"
_ENTITY = re.compile(r"&(?=#?\w+;)")
_ANGLE_BRACKETS = re.compile(r"<(https?://[^\s<>]+)>")
_SPLIT_CELL = re.compile(r"\\+\|")

MARK_TYPE = "mark"
"""Type of our own token that marks a removed link."""


@dataclass(frozen=True)
class _Link:
    """A link that is kept."""

    url: str
    content: Sequence[Token]
    is_autolink: bool


class InlineWriter:
    """Writes the inline content of one document."""

    def __init__(
        self,
        markdown: MarkdownIt,
        environment: dict[str, object],
        policy: LinkPolicy,
        mark: str,
        footnote_labels: Mapping[str, str],
    ) -> None:
        self.policy = policy
        self._markdown = markdown
        self._environment = environment
        self._mark = mark
        self._labels = footnote_labels
        self._text_writer = TextWriter(markdown, policy, mark)

    def write(self, content: str, *, in_cell: bool = False) -> str:
        """Rewrite the content of a paragraph, heading or table cell."""
        if is_link_free(content, self.policy):
            return content.replace("|", "\\|") if in_cell else content
        if len(_DELIMITER.findall(content)) > MAX_DELIMITERS:
            text = unescapeAll(_ANGLE_BRACKETS.sub(r"\1", content))
            return self._text_writer.write_literal(text, in_cell=in_cell)
        tokens: list[Token] = []
        self._markdown.inline.parse(content, self._markdown, self._environment, tokens)
        return self._write_tokens(tokens, self._escape_pattern(tokens, content), in_cell=in_cell)

    def _escape_pattern(self, tokens: Sequence[Token], content: str) -> str:
        """Return the pattern of everything to escape in the text of this block."""
        code = "".join(token.content for token in tokens if token.type == "code_inline")
        # Without a closing `>` there is no tag inside a line, and `$a<b$` stays as it is.
        pattern = f"{_ALWAYS_ESCAPED}|{_TAG_START if '>' in content else _UNCLOSED_TAG_START}"
        # In marked, a bracket followed by code that contains the rest of a link makes a link.
        pattern += _BRACKETS if "]" in code else ""
        # Math renderers parse formulas before code.
        return pattern + (_DOLLAR if "$" in code else "")

    def write_code(self, content: str, *, in_cell: bool = False) -> str:
        """Write a code span, delimited by more backticks than it contains."""
        longest_run = max((len(match[0]) for match in re.finditer("`+", content)), default=0)
        delimiter = "`" * (longest_run + 1)
        if in_cell and _SPLIT_CELL.search(content):
            # Renderers differ on where the cell ends.
            return self._text_writer.write_literal(content, in_cell=True)
        is_padded = content.startswith(" ") and content.endswith(" ") and content.strip()
        padding = " " if content[:1] == "`" or content[-1:] == "`" or is_padded else ""
        if in_cell:
            content = content.replace("|", "\\|")
        return f"{delimiter}{padding}{content}{padding}{delimiter}"

    def _write_tokens(
        self, tokens: Sequence[Token], pattern: str, *, in_cell: bool, in_link: bool = False
    ) -> str:
        """Write a sequence of tokens; inside the text of a link, nested links become text."""
        output: list[str] = []
        run = TextRun()
        escapes = re.compile(pattern + _BRACKETS if in_link else pattern)

        def flush_run() -> None:
            nonlocal run
            if run.length:
                append_text(
                    output, self._text_writer.write(run, escapes, in_cell=in_cell, in_link=in_link)
                )
            run = TextRun()

        for token in self._resolve_links(tokens, in_link=in_link):
            if isinstance(token, _Link):
                flush_run()
                append_text(output, self._write_link(token, pattern, in_cell=in_cell))
            elif token.type in ("text", "softbreak"):
                run.add(token.content or "\n")
            elif token.type == "text_special":
                run.add(token.content, token.markup)
            else:
                flush_run()
                text = self._write_token(token, in_cell=in_cell, in_link=in_link)
                if token.type != MARK_TYPE or not "".join(output[-2:]).endswith(text):
                    spaced = token.type != MARK_TYPE or not output or output[-1][-1:].isspace()
                    append_text(output, text if spaced else f" {text}")
        flush_run()
        return "".join(output)

    def _resolve_links(
        self, tokens: Sequence[Token], *, in_link: bool
    ) -> "Iterator[Token | _Link]":
        """Yield the tokens, with kept links as `_Link` and removed ones reduced to their content.

        That content joins the surrounding text, and is checked together with it.
        """
        stack = list(reversed(tokens))
        while stack:
            token = stack.pop()
            if token.type == "footnote_ref" and str(token.meta.get("label")) not in self._labels:
                continue  # its footnote is empty
            if token.type not in ("link_open", "image"):
                if token.type != "text" or token.content:
                    yield token
                continue
            content = (
                _pop_link_content(stack) if token.type == "link_open" else token.children or []
            )
            url = self.policy.allowed_url(
                str(token.attrs.get("href") or token.attrs.get("src") or "")
            )
            if url is not None and not in_link:
                yield _Link(url, content, is_autolink=token.info == "auto")
                continue
            mark = [Token(MARK_TYPE, "", 0)] if not in_link else []
            remaining = [] if mark and token.info == "auto" else content
            stack.extend(reversed([*remaining, *mark]))

    def _write_token(self, token: Token, *, in_cell: bool, in_link: bool) -> str:
        match token.type:
            case "hardbreak":
                return " " if in_cell or in_link else "\\\n"
            case "code_inline":
                return self.write_code(token.content, in_cell=in_cell)
            case "mark":
                return self._mark
            case "footnote_ref":
                return (
                    ""
                    if in_link
                    else f"[^{self._labels[str(cast('object', token.meta['label']))]}]"
                )
            case _:
                return token.markup  # emphasis, unchanged

    def _write_link(self, link: "_Link", pattern: str, *, in_cell: bool) -> str:
        """Write a link that is kept."""
        if link.is_autolink:
            return f"<{link.url if '://' in link.url else link.content[0].content}>"
        text = self._write_tokens(link.content, pattern, in_cell=in_cell, in_link=True)
        if self._mark in text or not text.strip():
            text = url_host(link.url) or "link"
        return f"[{' '.join(text.split())}]({_ENTITY.sub('&amp;', link.url)})"


def _pop_link_content(stack: list[Token]) -> list[Token]:
    """Pop the tokens of a link and drop its closing token; links do not nest."""
    content: list[Token] = []
    while stack and (token := stack.pop()).type != "link_close":
        content.append(token)
    return content
