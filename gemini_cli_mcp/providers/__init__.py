"""Providers: the backends that answer prompts and run searches."""
