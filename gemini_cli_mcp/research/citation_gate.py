"""The gate for a report's links: what nobody saw is marked, and is no link any more.

The report is parsed once and written anew in a subset of Markdown that all common renderers read
alike, so a link can only be what this module wrote. Blocks without anything that could be a link
stay as they are.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

import anyio.to_thread

from gemini_cli_mcp.errors import ExecutionFailed
from gemini_cli_mcp.providers.base import Reply
from gemini_cli_mcp.research.evidence import Ledger, Standing, canonical
from gemini_cli_mcp.research.markdown_writer import rewrite

MARK = "(unverified source)"
"""Stands in the text where a link was taken out."""
LARGEST = 2_000_000
"""Characters of a report; more is not one."""

_STRICT = re.compile(
    r"https?://(?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\.)+[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
    r"(?::\d{1,5})?(?:[/?#][A-Za-z0-9\-._~:/?#@!$&'*+,;=%]*)?",
    re.IGNORECASE,
)
"""An address that every reader understands alike: ASCII, no user, no parentheses."""
_MAIL = re.compile(r"mailto:[\w.+%-]+@[\w.-]+(?:\?[\w.=&%+-]*)?", re.ASCII | re.IGNORECASE)
_FRAGMENT = re.compile(r"#[\w%.-]*", re.ASCII)


@dataclass(frozen=True)
class Checked:
    """A report whose links are all covered, and how they were."""

    text: str
    citations: dict[str, int] | None
    """total, seen, domain, unseen: each URL counts once. None: there was no ledger."""

    @property
    def has_unseen(self) -> bool:
        """Whether the report may rest on something that nobody saw, in this round or before."""
        unseen = self.citations and self.citations["unseen"]
        return bool(unseen) or MARK[1:-1] in self.text.lower()


@dataclass
class Judge:
    """Decides which addresses may stay, and counts them."""

    standing: Callable[[str], Standing]
    judged: dict[str, Standing] = field(default_factory=dict[str, Standing])
    _names: dict[str, bool] = field(default_factory=dict[str, bool])

    def link(self, address: str) -> str | None:
        """The address as it may be written into a link; None if it may not."""
        if _FRAGMENT.fullmatch(address) or _MAIL.fullmatch(address):
            return address
        # What is left is encoded as browsers would do it, so that all of them read the same.
        url = quote(address, safe="-._~:/?#@!$&'*+,;=%[]")
        standing: Standing = "unseen"
        if _STRICT.fullmatch(url):
            standing = self.standing(url)
        self.judged[canonical(address)] = standing
        return None if standing == "unseen" else url

    def knows(self, name: str) -> bool:
        """Whether a bare host name may stay as it is; it is not counted."""
        if name not in self._names:
            url = f"https://{name}"
            known = bool(_STRICT.fullmatch(url)) and self.standing(url) != "unseen"
            self._names[name] = known
        return self._names[name]


async def gate(report: str, replies: Sequence[Reply]) -> Checked:
    """The report, held to what these runs saw; without a ledger there is nothing to hold it to."""
    if all(reply.evidence != "ledger" for reply in replies):
        return Checked(report, None)
    # In a thread: a hostile report must not stop the server.
    checked = await anyio.to_thread.run_sync(
        check_citations, report, Ledger.of(*replies), abandon_on_cancel=True
    )
    if not checked.text.strip():
        raise ExecutionFailed("The report was nothing but links that nobody saw.")
    return checked


def gated(text: str, replies: Sequence[Reply]) -> str:
    """The same for a few words, such as those of an error message."""
    if all(reply.evidence != "ledger" for reply in replies):
        return text
    return check_citations(text, Ledger.of(*replies)).text


def check_citations(report: str, ledger: Ledger) -> Checked:
    """Judge every link of a Markdown report; unseen ones are marked and no links any more."""
    if len(report) > LARGEST:
        raise ExecutionFailed(f"The report has {len(report):,} characters, more than can be read.")
    judge = Judge(ledger.standing)
    text = rewrite(report, judge, MARK)
    counts: dict[str, int] = dict.fromkeys(("seen", "domain", "unseen"), 0)
    for standing in judge.judged.values():
        counts[standing] += 1
    return Checked(text, {"total": len(judge.judged), **counts})
