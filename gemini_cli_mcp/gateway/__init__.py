"""An OpenAI-compatible gateway that adds `web_search` to any chat model."""
