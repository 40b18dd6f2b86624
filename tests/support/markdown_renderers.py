"""What common Markdown renderers make of a report, as far as its links go."""

import json
import subprocess
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

import pytest

from tests.support import ROOT
from tests.support.mcp_clients import node

PROGRAM = ROOT / "tests/renderers/render.mjs"
RENDERERS = ("marked", "markdown-it", "markdown-it 14", "remark", "remark without HTML")

needs_renderers = pytest.mark.skipif(
    not (PROGRAM.parent / "node_modules/marked").exists(),
    reason="scripts/test installs the Markdown renderers where Node is",
)


@dataclass(frozen=True)
class AllowedLinks:
    """Where links may lead."""

    hosts: Collection[str]
    """These and everything below them."""
    addresses: Collection[str] = ()
    """On the hosts of these, nothing else; by http or https, and any place in the page."""

    def allows(self, address: str) -> bool:
        """Whether an absolute address, as a browser writes it, leads to what was seen."""
        parts = urlsplit(address)
        if parts.scheme == "mailto":
            return True
        if parts.scheme not in ("http", "https"):
            return False
        host = _site(parts)
        if host in {_site(urlsplit(each)) for each in self.addresses}:
            return _page(parts) in {_page(urlsplit(each)) for each in self.addresses}
        return any(host == each or host.endswith(f".{each}") for each in self.hosts)


@dataclass(frozen=True)
class Leak:
    """An address in the HTML of a report that does not lead to what was seen."""

    index: int
    """Of the report."""
    renderer: str
    attribute: str
    value: str
    host: str
    """Empty where the address has none, or a browser cannot read it."""


class MarkdownRenderers:
    """All renderers, in one process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [node(), str(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def leaks(self, reports: Sequence[str], seen: AllowedLinks) -> list[Leak]:
        """Every address that any renderer makes of these reports and `seen` does not allow.

        Places in the report (`#part`) and mail addresses are allowed. Relative addresses are not,
        nor are scripts, other schemes, and what no browser can read.
        """
        found: list[Leak] = []
        for index, report in enumerate(reports):
            for renderer, attribute, value, resolved in self._render(index, report):
                for address in dict.fromkeys(resolved):
                    if address is None or not seen.allows(address):
                        host = _site(urlsplit(address)) if address else ""
                        found.append(Leak(index, renderer, attribute, value, host))
                        break
        return found

    def _render(self, index: int, report: str) -> list[tuple[str, str, str, list[str | None]]]:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps({"id": index, "markdown": report}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the renderers ended at {report!r}"
        told: dict[str, Any] = json.loads(line)
        assert told["id"] == index
        return told["found"]

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def _site(parts: SplitResult) -> str:
    return (parts.hostname or "").rstrip(".")


def _page(parts: SplitResult) -> tuple[str, str, str]:
    return (parts.netloc, parts.path.rstrip("/"), parts.query)
