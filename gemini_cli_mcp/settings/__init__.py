"""User configuration: environment variables and the engines file."""
