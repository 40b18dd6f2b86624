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
from gemini_cli_mcp.research.evidence import Ledger, LinkStatus, canonical_url
from gemini_cli_mcp.research.markdown_writer import rewrite_links

UNVERIFIED_MARK = "(unverified source)"
"""Stands in the text where a link was taken out."""
MAX_REPORT_CHARS = 2_000_000
"""Characters of a report; more is not one."""

_PLAIN_URL = re.compile(
    r"https?://(?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\.)+[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
    r"(?::\d{1,5})?(?:[/?#][A-Za-z0-9\-._~:/?#@!$&'*+,;=%]*)?",
    re.IGNORECASE,
)
"""An address that every reader understands alike: ASCII, no user, no parentheses."""
_MAILTO = re.compile(r"mailto:[\w.+%-]+@[\w.-]+(?:\?[\w.=&%+-]*)?", re.ASCII | re.IGNORECASE)
_FRAGMENT = re.compile(r"#[\w%.-]*", re.ASCII)


@dataclass(frozen=True)
class CheckedReport:
    """A report whose links are all covered, and how they were."""

    text: str
    citations: dict[str, int] | None
    """total, seen, domain, unseen: each URL counts once. None: there was no ledger."""

    @property
    def has_unseen(self) -> bool:
        """Whether the report may rest on something that nobody saw, in this round or before."""
        unseen = self.citations and self.citations["unseen"]
        return bool(unseen) or UNVERIFIED_MARK[1:-1] in self.text.lower()


@dataclass
class LedgerLinkPolicy:
    """Decides which addresses may stay, and counts them."""

    link_status: Callable[[str], LinkStatus]
    statuses: dict[str, LinkStatus] = field(default_factory=dict[str, LinkStatus])
    _host_cache: dict[str, bool] = field(default_factory=dict[str, bool])

    def allowed_url(self, address: str) -> str | None:
        """The address as it may be written into a link; None if it may not."""
        if _FRAGMENT.fullmatch(address) or _MAILTO.fullmatch(address):
            return address
        # What is left is encoded as browsers would do it, so that all of them read the same.
        url = quote(address, safe="-._~:/?#@!$&'*+,;=%[]")
        status: LinkStatus = "unseen"
        if _PLAIN_URL.fullmatch(url):
            status = self.link_status(url)
        self.statuses[canonical_url(address)] = status
        return None if status == "unseen" else url

    def allows_host(self, name: str) -> bool:
        """Whether a bare host name may stay as it is; it is not counted."""
        if name not in self._host_cache:
            url = f"https://{name}"
            known = bool(_PLAIN_URL.fullmatch(url)) and self.link_status(url) != "unseen"
            self._host_cache[name] = known
        return self._host_cache[name]


async def check_report(report: str, replies: Sequence[Reply]) -> CheckedReport:
    """The report, held to what these runs saw; without a ledger there is nothing to hold it to."""
    if all(reply.evidence != "ledger" for reply in replies):
        return CheckedReport(report, None)
    # In a thread: a hostile report must not stop the server.
    checked = await anyio.to_thread.run_sync(
        check_citations, report, Ledger.from_replies(*replies), abandon_on_cancel=True
    )
    if not checked.text.strip():
        raise ExecutionFailed("The report was nothing but links that nobody saw.")
    return checked


def check_text(text: str, replies: Sequence[Reply]) -> str:
    """The same for a few words, such as those of an error message."""
    if all(reply.evidence != "ledger" for reply in replies):
        return text
    return check_citations(text, Ledger.from_replies(*replies)).text


def check_citations(report: str, ledger: Ledger) -> CheckedReport:
    """Judge every link of a Markdown report; unseen ones are marked and no links any more."""
    if len(report) > MAX_REPORT_CHARS:
        raise ExecutionFailed(f"The report has {len(report):,} characters, more than can be read.")
    policy = LedgerLinkPolicy(ledger.link_status)
    text = rewrite_links(report, policy, UNVERIFIED_MARK)
    counts: dict[str, int] = dict.fromkeys(("seen", "domain", "unseen"), 0)
    for status in policy.statuses.values():
        counts[status] += 1
    return CheckedReport(text, {"total": len(policy.statuses), **counts})
