"""The official gemini CLI as a provider."""
