"""The OpenAI edge: `web_search` for any chat model. So far: what a user's words ask for."""
