"""The caller's question: checked, and put into a prompt as data."""

import secrets
from datetime import datetime

from gemini_cli_mcp import prompts
from gemini_cli_mcp.errors import InvalidInput
from gemini_cli_mcp.sanitize import replace_unsafe_chars
from gemini_cli_mcp.types import MAX_QUERY_CHARS


def parse_query(query: object) -> str:
    """The question, if it is one."""
    if not isinstance(query, str):
        raise InvalidInput(f"`query` must be a string, not {json_type_name(query)}.")
    if not query.strip():
        raise InvalidInput("`query` is blank.", hint="Put the question into `query`.")
    if len(query) > MAX_QUERY_CHARS:
        raise InvalidInput(
            f"`query` has {len(query)} characters; at most {MAX_QUERY_CHARS} are taken.",
            hint="Ask the question itself and leave the material out.",
        )
    if "\0" in query:
        raise InvalidInput("`query` contains a NUL character.")
    return replace_unsafe_chars(query)


def render_prompt(template: str, question: str, **values: str) -> str:
    """The template with the question in it, today's date, and marks that no text can guess."""
    return prompts.render(
        template,
        query=question,
        date=datetime.now().astimezone().date().isoformat(),
        mark=secrets.token_hex(4),
        **values,
    )


def json_type_name(value: object) -> str:
    """What JSON calls it, nearly."""
    return "null" if value is None else type(value).__name__
