"""Research logic: no subprocesses, no HTTP, no MCP."""
