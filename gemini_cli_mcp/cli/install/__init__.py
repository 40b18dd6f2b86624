"""Add this server to the configuration of an MCP client."""
