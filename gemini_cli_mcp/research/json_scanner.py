"""Find where the JSON objects in a text start and end, in linear time, without parsing them."""

import re

Span = tuple[int, int]
"""The offsets of the start and the end of an object."""

MAX_DEPTH = 64
"""Maximum depth of nested objects and arrays."""
STRING_OR_BRACKET = re.compile(r'("(?>[^"\\]++|\\.)*+")|([{}\[\]])|(")', re.DOTALL)
"""A string, a bracket, or the quote that opens an unterminated string."""

_OBJECT_START = re.compile(r'\{\s*+"')
_TOKEN = re.compile(r'\s*+(?:("(?>[^"\\]++|\\.)*+")|([{}\[\]:,])|([-+.\w]++))', re.DOTALL)


def find_objects(text: str) -> list[Span]:
    """Return all outermost objects that are lexically complete, in order."""
    spans: list[Span] = []
    offset = 0
    while match := _OBJECT_START.search(text, offset):
        complete, offset = _scan_object(text, match.start())
        spans += complete
    return spans


def _scan_object(text: str, start: int) -> tuple[list[Span], int]:
    """Scan one object from its brace; return the complete objects and the offset to resume at.

    If the object is incomplete, the complete objects inside it count. No text is scanned twice
    except the last string: its quotes may have been prose, and the next object may start there.
    """
    stack: list[tuple[str, int, int]] = []  # opening bracket, its offset, spans found before it
    spans: list[Span] = []
    expected = "value"
    opened = False  # the last token opened a container, so it may be closed immediately
    offset = resume = start
    while token := _TOKEN.match(text, offset):
        string, symbol, scalar = token.groups()
        if string and expected == "key":
            expected = ":"
        elif (string or scalar) and expected == "value":
            expected = ","
        elif symbol == ":" and expected == ":":
            expected = "value"
        elif symbol == "," and expected == ",":
            expected = "key" if stack[-1][0] == "{" else "value"
        elif symbol in ("{", "[") and expected == "value" and len(stack) < MAX_DEPTH:
            stack.append((symbol, token.start(2), len(spans)))
            expected = "key" if symbol == "{" else "value"
        elif symbol in ("}", "]") and (opened or expected == ",") and _closes(symbol, stack[-1][0]):
            bracket, bracket_offset, span_count = stack.pop()
            if bracket == "{":
                spans[span_count:] = [(bracket_offset, token.end())]
            if not stack:
                return spans, token.end()
            expected = ","
        else:
            break
        opened = symbol in ("{", "[")
        offset = token.end()
        resume = token.start(1) + 1 if string else offset
    return spans, max(resume, start + 1)


def _closes(closing: str, opening: str) -> bool:
    return (opening, closing) in (("{", "}"), ("[", "]"))


def find_answer_spans(text: str, keys: frozenset[str]) -> list[Span]:
    """Return the outermost objects that start with one of the keys, complete or not."""
    answer_start = re.compile(r"\{\s*+[\"'\u201c]?(?:" + "|".join(sorted(keys)) + r")\b")
    spans: list[Span] = []
    offset = 0
    while match := answer_start.search(text, offset):
        offset = _object_end(text, match.start())
        spans.append((match.start(), offset))
    return spans


def _object_end(text: str, start: int) -> int:
    """Return the end of the object at `start`, or of the text if the object is not closed."""
    depth = 0
    for token in STRING_OR_BRACKET.finditer(text, start):
        bracket, unterminated = token[2], token[3]
        if unterminated:
            break
        if bracket:
            depth += 1 if bracket in "{[" else -1
            if depth <= 0:
                return token.end()
    return len(text)
