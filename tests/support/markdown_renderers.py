"""Find the links that common Markdown renderers produce from a report."""

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
    reason="scripts/test installs the Markdown renderers if Node is available",
)


@dataclass(frozen=True)
class AllowedLinks:
    """The targets that links may point to."""

    hosts: Collection[str]
    """Allowed hosts, including their subdomains."""
    addresses: Collection[str] = ()
    """The only pages allowed on their hosts, over http or https and with any fragment."""

    def allows(self, address: str) -> bool:
        """Return whether an absolute address, as normalized by a browser, is allowed."""
        parts = urlsplit(address)
        if parts.scheme == "mailto":
            return True
        if parts.scheme not in ("http", "https"):
            return False
        host = _host(parts)
        if host in {_host(urlsplit(page)) for page in self.addresses}:
            return _page(parts) in {_page(urlsplit(page)) for page in self.addresses}
        return any(host == site or host.endswith(f".{site}") for site in self.hosts)


@dataclass(frozen=True)
class Leak:
    """An address in the rendered HTML of a report that is not allowed."""

    index: int
    """Index of the report."""
    renderer: str
    attribute: str
    value: str
    host: str
    """Empty if the address has no host, or a browser cannot parse it."""


class MarkdownRenderers:
    """Runs all renderers in one Node process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [node(), str(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def leaks(self, reports: Sequence[str], allowed: AllowedLinks) -> list[Leak]:
        """Return every address that a renderer produces and `allowed` does not permit.

        Fragments (`#part`) and mail addresses are allowed. Relative addresses, scripts, other
        schemes and addresses that no browser can parse are not.
        """
        leaks: list[Leak] = []
        for index, report in enumerate(reports):
            for renderer, attribute, value, resolved in self._render(index, report):
                for address in dict.fromkeys(resolved):
                    if address is None or not allowed.allows(address):
                        host = _host(urlsplit(address)) if address else ""
                        leaks.append(Leak(index, renderer, attribute, value, host))
                        break
        return leaks

    def _render(self, index: int, report: str) -> list[tuple[str, str, str, list[str | None]]]:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps({"id": index, "markdown": report}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the renderers exited on {report!r}"
        result: dict[str, Any] = json.loads(line)
        assert result["id"] == index
        return result["found"]

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def _host(parts: SplitResult) -> str:
    return (parts.hostname or "").rstrip(".")


def _page(parts: SplitResult) -> tuple[str, str, str]:
    return (parts.netloc, parts.path.rstrip("/"), parts.query)
