"""Rules for the source code that no linter knows."""

import re
from pathlib import Path

import gemini_cli_mcp

MAX_UNTYPED_USES = 80
MAX_LINES = 280
"""About 250, as in docs/contributing.md."""

PACKAGE = Path(gemini_cli_mcp.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))


def test_untyped_json_is_rare() -> None:
    uses = {
        module.relative_to(PACKAGE).as_posix(): len(re.findall(r"\bJsonObject\b", line))
        for module in MODULES
        for line in [re.sub(r"(?m)^ *(?:from|import) .*$", "", module.read_text())]
    }

    assert 0 < sum(uses.values()) <= MAX_UNTYPED_USES, uses


def test_modules_are_short() -> None:
    lines = {
        module.relative_to(PACKAGE).as_posix(): len(module.read_text().splitlines())
        for module in MODULES
    }

    assert {name: count for name, count in lines.items() if count > MAX_LINES} == {}
