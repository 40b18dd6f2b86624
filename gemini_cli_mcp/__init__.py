"""Google-grounded web search for MCP clients, by driving the official `gemini` CLI."""

__version__ = "0.1.0"
