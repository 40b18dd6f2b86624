"""How fast it is: every number against a reference of the same run, never a test."""
