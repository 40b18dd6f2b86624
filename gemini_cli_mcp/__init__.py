"""Google-grounded web search for MCP clients, powered by the official `gemini` CLI."""

__version__ = "0.1.0"
