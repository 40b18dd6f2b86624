"""The gateway's Responses API."""
