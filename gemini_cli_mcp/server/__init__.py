"""The MCP server: tools, progress, reports as resources, and errors as results."""
