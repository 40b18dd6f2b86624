"""The citation gate: replace every link in a report that is not in the ledger with a mark.

The report is parsed once and rewritten in a subset of Markdown that all common renderers parse the
same way, so it contains no links except those written here. Blocks that cannot contain a link are
copied unchanged.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

from gemini_cli_mcp.errors import ExecutionFailed
from gemini_cli_mcp.providers.base import Reply
from gemini_cli_mcp.research.evidence import Ledger, LinkStatus, canonical_url
from gemini_cli_mcp.research.markdown_writer import rewrite_links

UNVERIFIED_MARK = "(unverified source)"
"""Inserted where an unseen link was removed."""
MAX_REPORT_CHARS = 2_000_000
"""Maximum characters of a report; longer ones are rejected."""

_PLAIN_URL = re.compile(
    r"https?://(?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\.)+[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
    r"(?::\d{1,5})?(?:[/?#][A-Za-z0-9\-._~:/?#@!$&'*+,;=%]*)?",
    re.IGNORECASE,
)
"""A URL that all parsers read the same way: ASCII, without userinfo or parentheses."""
_MAILTO = re.compile(r"mailto:[\w.+%-]+@[\w.-]+(?:\?[\w.=&%+-]*)?", re.ASCII | re.IGNORECASE)
_FRAGMENT = re.compile(r"#[\w%.-]*", re.ASCII)


@dataclass(frozen=True)
class CitationCounts:
    """Number of distinct URLs in a report, in all and by status."""

    total: int
    seen: int
    domain: int
    unseen: int


@dataclass(frozen=True)
class CheckedReport:
    """A report that passed the citation gate, and the status of its links."""

    text: str
    citations: CitationCounts | None
    """None if there was no ledger."""

    @property
    def has_unseen(self) -> bool:
        """Whether the report may rely on an unseen link, from this round or an earlier one."""
        unseen = self.citations and self.citations.unseen
        return bool(unseen) or UNVERIFIED_MARK[1:-1] in self.text.lower()


@dataclass
class LedgerLinkPolicy:
    """Decides which links to keep, and records the status of each."""

    link_status: Callable[[str], LinkStatus]
    statuses: dict[str, LinkStatus] = field(default_factory=dict[str, LinkStatus])
    _host_cache: dict[str, bool] = field(default_factory=dict[str, bool])

    def allowed_url(self, address: str) -> str | None:
        """Return the URL as it should be written into a link; None if the link must go."""
        if _FRAGMENT.fullmatch(address) or _MAILTO.fullmatch(address):
            return address
        # Percent-encode the rest as browsers do, so that all of them read the same URL.
        url = quote(address, safe="-._~:/?#@!$&'*+,;=%[]")
        status: LinkStatus = "unseen"
        if _PLAIN_URL.fullmatch(url):
            status = self.link_status(url)
        self.statuses[canonical_url(address)] = status
        return None if status == "unseen" else url

    def allows_host(self, name: str) -> bool:
        """Return whether a bare host name may stay as it is; it is not counted."""
        if name not in self._host_cache:
            url = f"https://{name}"
            is_allowed = bool(_PLAIN_URL.fullmatch(url)) and self.link_status(url) != "unseen"
            self._host_cache[name] = is_allowed
        return self._host_cache[name]


def check_report(report: str, replies: Sequence[Reply]) -> CheckedReport:
    """Check the report against the ledger of these runs; without one, return it unchanged.

    Call it in a worker thread: a hostile report must not block the event loop.
    """
    if all(reply.evidence != "ledger" for reply in replies):
        return CheckedReport(report, None)
    checked = check_citations(report, Ledger.from_replies(*replies))
    if not checked.text.strip():
        raise ExecutionFailed("The report contained only links that are not in the search record.")
    return checked


def check_text(text: str, replies: Sequence[Reply]) -> str:
    """Apply the citation gate to a short text, such as an error message."""
    if all(reply.evidence != "ledger" for reply in replies):
        return text
    return check_citations(text, Ledger.from_replies(*replies)).text


def check_citations(report: str, ledger: Ledger) -> CheckedReport:
    """Check every link of a Markdown report; replace the unseen ones with the mark."""
    if len(report) > MAX_REPORT_CHARS:
        raise ExecutionFailed(
            f"The report has {len(report):,} characters; the maximum is {MAX_REPORT_CHARS:,}."
        )
    policy = LedgerLinkPolicy(ledger.link_status)
    text = rewrite_links(report, policy, UNVERIFIED_MARK)
    counts = Counter(policy.statuses.values())
    citations = CitationCounts(
        len(policy.statuses), counts["seen"], counts["domain"], counts["unseen"]
    )
    return CheckedReport(text, citations)
