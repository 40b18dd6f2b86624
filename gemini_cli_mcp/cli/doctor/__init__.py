"""Check every precondition of a search, and suggest a fix for each one that is not met."""
