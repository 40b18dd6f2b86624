"""The Responses API of the gateway."""
