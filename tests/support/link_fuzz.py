"""Hostile reports through the gate and then through the renderers: which links are left?

scripts/fuzz-links runs it in full, with the number of reports and a seed; the tests run a few.
"""

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, islice

from gemini_cli_mcp.research.citation_gate import check_citations
from tests.support.markdown_fuzz import ALLOWED, LEDGER, matrix, reports
from tests.support.markdown_renderers import MarkdownRenderers

COUNT = 20_000
SEED = 1
BATCH = 500
SHOWN = 5
"""So many leaks of different kinds are minimised and shown."""
TRIES = 400
"""Renderings that minimising one report may take."""


@dataclass(frozen=True)
class Failure:
    """A report that the gate did not make safe."""

    report: str
    gated: str
    problem: str
    kind: tuple[str, ...]
    """Where the link is and leads, or the name of the gate's own error."""

    def __str__(self) -> str:
        return f"{self.problem}\n  report: {self.report!r}\n  gated:  {self.gated!r}"


def find_failure(report: str, renderers: MarkdownRenderers) -> Failure | None:
    """The first link that the gate leaves in a report and should not; or that the gate fails."""
    try:
        gated = check_citations(report, LEDGER).text
    except Exception as error:  # noqa: BLE001 - whatever it is, the report is what is to be shown
        return Failure(report, "", f"the gate fails: {error!r}", (type(error).__name__,))
    for leak in renderers.leaks([gated], ALLOWED):
        where = f"{leak.renderer}: {leak.attribute}={leak.value!r} (host {leak.host!r})"
        return Failure(report, gated, where, (leak.renderer, leak.attribute, leak.host))
    return None


def find_failures(texts: Iterable[str], renderers: MarkdownRenderers) -> Iterator[Failure]:
    """Each report of these that the gate does not make safe, as it is found."""
    return (failure for text in texts if (failure := find_failure(text, renderers)))


def minimize(failure: Failure, renderers: MarkdownRenderers) -> Failure:
    """A shorter report that fails in the same way: greedy, parts are left out while it does."""
    tries = TRIES
    size = len(failure.report) // 2
    while size:
        at = 0
        while at < len(failure.report) and tries:
            tries -= 1
            shorter = failure.report[:at] + failure.report[at + size :]
            smaller = find_failure(shorter, renderers)
            if smaller and smaller.kind == failure.kind:
                failure = smaller
            else:
                at += size
        size //= 2
    return failure


def main(count: int, seed: int) -> int:
    """Run the matrix and so many random reports; the number of those that leak."""
    started = time.monotonic()
    leaks = done = 0
    shown: set[tuple[str, ...]] = set()
    texts = chain(matrix(), reports(seed, count))
    with closing(MarkdownRenderers()) as renderers:
        while batch := list(islice(texts, BATCH)):
            for failure in find_failures(batch, renderers):
                leaks += 1
                if len(shown) < SHOWN and failure.kind not in shown:
                    shown.add(failure.kind)
                    print(minimize(failure, renderers), flush=True)
            done += len(batch)
            rate = done / (time.monotonic() - started)
            print(f"{done} reports, {leaks} leak, {rate:.0f}/s", file=sys.stderr)
    print(f"{done} reports (seed {seed}): {leaks} leak")
    return leaks


if __name__ == "__main__":
    arguments = [int(argument) for argument in sys.argv[1:]]
    sys.exit(main(*(arguments + [COUNT, SEED][len(arguments) :])) > 0)
