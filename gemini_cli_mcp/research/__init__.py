"""WHAT we do: no subprocess, no HTTP, no MCP."""
