"""Code blocks in README.md and docs/."""

import re
from dataclasses import dataclass

from tests.support import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"(<!-- needs: [^\n]* -->\n)?^( *)```(\w*)\n(.*?)^\2```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    page: str
    language: str
    text: str
    needs: bool

    def __str__(self) -> str:
        return f"{self.page}: {self.text.split()[0] if self.text.split() else ''}"


BLOCKS = [
    Block(page.name, match[3], match[4], bool(match[1]))
    for page in PAGES
    for match in BLOCK.finditer(page.read_text(encoding="utf-8"))
]


def blocks(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages]
