"""Pass hostile reports through the citation gate and the renderers, and look for leaked links.

scripts/fuzz-links runs it in full, with a number of reports and a seed; the tests run a few.
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

DEFAULT_COUNT = 20_000
DEFAULT_SEED = 1
BATCH_SIZE = 500
MAX_SHOWN = 5
"""Maximum number of leaks of different kinds to minimize and print."""
MAX_ATTEMPTS = 400
"""Maximum number of attempts to minimize one report."""


@dataclass(frozen=True)
class Failure:
    """A report that the gate did not make safe, or could not process."""

    report: str
    gated: str
    problem: str
    kind: tuple[str, ...]
    """The renderer, attribute and host of the link, or the type of the gate's exception."""

    def __str__(self) -> str:
        return f"{self.problem}\n  report: {self.report!r}\n  gated:  {self.gated!r}"


def find_failure(report: str, renderers: MarkdownRenderers) -> Failure | None:
    """Return the first link that the gate fails to remove, or the exception that it raises."""
    try:
        gated = check_citations(report, LEDGER).text
    except Exception as error:  # noqa: BLE001 - any exception is a failure to report
        return Failure(report, "", f"the gate raised {error!r}", (type(error).__name__,))
    for leak in renderers.leaks([gated], ALLOWED):
        problem = f"{leak.renderer}: {leak.attribute}={leak.value!r} (host {leak.host!r})"
        return Failure(report, gated, problem, (leak.renderer, leak.attribute, leak.host))
    return None


def find_failures(texts: Iterable[str], renderers: MarkdownRenderers) -> Iterator[Failure]:
    """Yield a failure for each report that the gate does not make safe."""
    return (failure for text in texts if (failure := find_failure(text, renderers)))


def minimize(failure: Failure, renderers: MarkdownRenderers) -> Failure:
    """Return a shorter report with a failure of the same kind, by greedily removing parts."""
    attempts = MAX_ATTEMPTS
    size = len(failure.report) // 2
    while size:
        offset = 0
        while offset < len(failure.report) and attempts:
            attempts -= 1
            shorter = failure.report[:offset] + failure.report[offset + size :]
            smaller = find_failure(shorter, renderers)
            if smaller and smaller.kind == failure.kind:
                failure = smaller
            else:
                offset += size
        size //= 2
    return failure


def main(count: int, seed: int) -> int:
    """Run the matrix and `count` random reports; return the number of reports that leak."""
    started = time.monotonic()
    leaks = checked = 0
    shown: set[tuple[str, ...]] = set()
    texts = chain(matrix(), reports(seed, count))
    with closing(MarkdownRenderers()) as renderers:
        while batch := list(islice(texts, BATCH_SIZE)):
            for failure in find_failures(batch, renderers):
                leaks += 1
                if len(shown) < MAX_SHOWN and failure.kind not in shown:
                    shown.add(failure.kind)
                    print(minimize(failure, renderers), flush=True)
            checked += len(batch)
            rate = checked / (time.monotonic() - started)
            print(f"{checked} reports, {leaks} leak, {rate:.0f}/s", file=sys.stderr)
    print(f"{checked} reports (seed {seed}): {leaks} leak")
    return leaks


if __name__ == "__main__":
    arguments = [int(argument) for argument in sys.argv[1:]]
    sys.exit(main(*(arguments + [DEFAULT_COUNT, DEFAULT_SEED][len(arguments) :])) > 0)
