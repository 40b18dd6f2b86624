"""HOW a child runs. Knows nothing of gemini."""
