"""The MCP edge: tools, progress, reports as resources, and errors as results."""
