"""The command `gemini-cli-mcp-stub`: the stub CLI, a program of its own (scripts/stub-gemini)."""

import runpy
from pathlib import Path


def main() -> None:
    """Run the stub CLI with this process's arguments."""
    program = Path(__file__).with_name("_stub_gemini")
    if not program.exists():  # in a checkout
        program = Path(__file__).parent.parent / "scripts/stub-gemini"
    runpy.run_path(str(program), run_name="__main__")
