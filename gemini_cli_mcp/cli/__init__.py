"""Commands for people in a terminal."""
