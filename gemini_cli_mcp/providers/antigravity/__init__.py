"""The official agy CLI as a provider."""
