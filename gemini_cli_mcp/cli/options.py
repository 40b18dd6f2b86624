"""The parsed command line: the command and its options, typed."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

Command = Literal[
    "serve",
    "search",
    "deep_search",
    "grounded_search",
    "web_search",
    "gateway",
    "login",
    "doctor",
    "install",
    "completion",
]
Shell = Literal["bash", "zsh", "fish"]


class Options(argparse.Namespace):
    """The options of one command; those of other commands have their defaults here."""

    command: Command = "serve"
    http: bool = False
    host: str = "127.0.0.1"
    port: int = 8000
    allowed_host: Sequence[str] = ()
    words: Sequence[str] = ()
    json: bool = False
    quiet: bool = False
    max_iterations: int | None = None
    output: Path | None = None
    model: str | None = None
    thinking: str | None = None
    include_thoughts: bool = False
    engine: str | None = None
    recency: str | None = None
    count: int | None = None
    provider: str = ""
    live: bool = False
    offline: bool = False
    client: str = ""
    env: Sequence[str] = ()
    project: bool = False
    force: bool = False
    print: bool = False
    uninstall: bool = False
    shell: Shell = "bash"

    @property
    def query(self) -> str:
        """The question, whose words need no quotes."""
        return " ".join(self.words)
