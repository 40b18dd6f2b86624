"""The JSON Schema of web_search's arguments, generated from the configured engines.

A separate module because it is needed before the MCP handshake and `web_search` imports a lot.
"""

from gemini_cli_mcp.json_values import JsonObject
from gemini_cli_mcp.settings.engines import DEFAULT_HITS, MAX_HITS, RECENCY_DAYS, Engines
from gemini_cli_mcp.types import MAX_QUERY_CHARS


def web_search_schema(engines: Engines) -> JsonObject:
    """Return the schema of the arguments that `web_search` accepts with these engines."""
    default_engine = {"default": engines.default} if engines.default else {}
    properties = {
        "query": {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_QUERY_CHARS,
            "description": "What to search for, in words as for a search engine",
        },
        "engine": {
            "type": "string",
            "enum": [engine.id for engine in engines.engines],
            "description": "; ".join(
                f"{engine.id}: {engine.description}" for engine in engines.engines
            ),
            **default_engine,
        },
        "recency": {
            "type": "string",
            "enum": list(RECENCY_DAYS),
            "default": "noLimit",
            "description": "Maximum age of the pages",
        },
        "count": {
            "type": "integer",
            "minimum": 1,
            "maximum": MAX_HITS,
            "default": DEFAULT_HITS,
            "description": "Maximum number of hits",
        },
    }
    required = ["query"] if engines.default else ["query", "engine"]
    return {
        "type": "object",
        "required": required,
        "properties": properties,
        "additionalProperties": False,
    }
