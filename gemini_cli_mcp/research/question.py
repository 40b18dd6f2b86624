"""Validate the caller's question and embed it in a prompt as data."""

import secrets
from datetime import datetime

from gemini_cli_mcp import prompts
from gemini_cli_mcp.errors import InvalidInput
from gemini_cli_mcp.sanitize import replace_unsafe_chars
from gemini_cli_mcp.types import MAX_QUERY_CHARS


def parse_query(query: object) -> str:
    """Return the sanitized question; raise InvalidInput if it is not usable."""
    if not isinstance(query, str):
        raise InvalidInput(f"`query` must be a string, not {json_type_name(query)}.")
    if not query.strip():
        raise InvalidInput("`query` must not be blank.", hint="Pass the question in `query`.")
    if len(query) > MAX_QUERY_CHARS:
        raise InvalidInput(
            f"`query` has {len(query)} characters; the maximum is {MAX_QUERY_CHARS}.",
            hint="Send only the question, without background material.",
        )
    if "\0" in query:
        raise InvalidInput("`query` contains a NUL character.")
    return replace_unsafe_chars(query)


def render_prompt(template: str, question: str, **values: str) -> str:
    """Fill the template with the question, today's date and an unguessable delimiter."""
    return prompts.render(
        template,
        query=question,
        date=datetime.now().astimezone().date().isoformat(),
        mark=secrets.token_hex(4),
        **values,
    )


def json_type_name(value: object) -> str:
    """Return the type name for error messages: JSON's `null`, otherwise Python's name."""
    return "null" if value is None else type(value).__name__
