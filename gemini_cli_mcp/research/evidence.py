"""What a run really saw: its ledger, and how far that covers a URL.

The ledger is made of the provider's own records, never of what the model says. Search
results come as redirects that name no more than the site, so a URL may be `seen` (it is in
the ledger), known by its `domain` only, or `unseen`.
"""

import posixpath
import re
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Literal
from urllib.parse import SplitResult, quote, unquote, urlsplit

import idna
from publicsuffixlist import PublicSuffixList

from gemini_cli_mcp.providers.base import Reply
from gemini_cli_mcp.types import GOOGLE_REDIRECT_HOST, RecordedFetch, RecordedSearch, Source

LinkStatus = Literal["seen", "domain", "unseen"]
VerificationIssue = Literal[
    "round_one",
    "no_search",
    "search_failed",
    "record_only",
    "unseen_citation",
    "truncated",
    "rejected",
]
"""Why a round is not verified though it says so; `rejected`: its report was not taken either."""

MAX_HOST_CHARS = 253
_TRACKING = re.compile(r"(?:utm_\w+|gclid|fbclid|msclkid|mc_[ce]id|igshid|ref_src)=")
_DOMAIN = re.compile(r"(?:[\w-]+\.)+[a-zA-Z\u0080-\uffff][\w-]*")
_EMBEDDED_HOST = re.compile(r"(?:https?:[/\\]*|[/\\]{2})([\w-]+(?:\.[\w-]+)+)", re.IGNORECASE)
_GOOGLE_REDIRECT_PATHS = (
    "/url",
    "/imgres",
    "/amp",
    "/aclk",
    "/search",
    "/travel/clk",
    "/translate",
)
_ARCHIVES = ("archive.org", "archive.ph", "archive.today")
"""Their addresses hold that of the page whose copy they show."""
_PLATFORMS = frozenset(
    {
        *("wordpress.com", "medium.com", "substack.com", "tumblr.com", "weebly.com"),
        *("livejournal.com", "narod.ru"),
    }
)
"""Sites below which everybody has one, beside those of the public suffix list."""


@dataclass(frozen=True)
class Ledger:
    """The searches and pages of one or more runs that their provider's records prove."""

    searches: tuple[RecordedSearch, ...]
    fetches: tuple[RecordedFetch, ...]

    @classmethod
    def from_replies(cls, *replies: Reply) -> "Ledger":
        return cls(
            tuple(search for reply in replies for search in reply.searches),
            tuple(fetch for reply in replies for fetch in reply.fetches),
        )

    @cached_property
    def sources(self) -> list[Source]:
        """Everything that was found or read, in the order first seen."""
        found = (source for search in self.searches for source in search.sources)
        read = (page for fetch in self.fetches for page in fetch.pages)
        return list({source.url: source for source in (*found, *read)}.values())

    @property
    def queries(self) -> list[str]:
        """What was searched: by Google where that is known, else what it was asked."""
        query_lists = (search.google_queries or (search.query,) for search in self.searches)
        return list(dict.fromkeys(query for queries in query_lists for query in queries if query))

    @property
    def errors(self) -> list[str]:
        """Why searches and fetches failed, where they did."""
        return [call.error for call in (*self.searches, *self.fetches) if call.error]

    @property
    def has_sources(self) -> bool:
        """Whether a search succeeded with sources."""
        return any(search.sources for search in self.searches)

    @property
    def every_search_failed(self) -> bool:
        return bool(self.searches) and all(search.error for search in self.searches)

    @cached_property
    def _canonical_urls(self) -> frozenset[str]:
        return frozenset(canonical_url(source.url) for source in self.sources)

    @cached_property
    def sites(self) -> list[str]:
        """The sites of the sources, each once, as far as they are known."""
        return list(
            dict.fromkeys(site for source in self.sources if (site := source_domain(source)))
        )

    @cached_property
    def _site_set(self) -> frozenset[str]:
        return frozenset(self.sites)

    def link_status(self, url: str) -> LinkStatus:
        """How far this URL is covered."""
        if canonical_url(url) in self._canonical_urls:
            return "seen"
        host = url_host(url)
        if not host or len(host) > MAX_HOST_CHARS or _may_redirect(url, host, self._site_set):
            return "unseen"
        parts = host.split(".")
        parents = {".".join(parts[start:]) for start in range(len(parts) - 1)} & self._site_set
        # Below github.io or co.uk everybody has a site of their own.
        is_known = host in parents or not all(map(_is_public_suffix, parents))
        return "domain" if is_known else "unseen"


def search_issue(reply: Reply) -> VerificationIssue | None:
    """Why a run proves no search; None if it does.

    A plain-text CLI proves nothing, so there the model's word is all there is.
    """
    if reply.evidence == "none":
        return None
    # Events do not tell what a search returned, only that it did.
    returned = [
        search.sources if reply.evidence == "ledger" else not search.error
        for search in reply.searches
    ]
    if not returned:
        return "no_search"
    if not any(returned):
        return "search_failed"
    return "record_only" if reply.record_only else None


def source_domain(source: Source) -> str:
    """The site a source belongs to; a redirect carries it as its title."""
    host = url_host(source.url)
    if host != GOOGLE_REDIRECT_HOST:
        return host
    title = source.title.strip().lower()
    return url_host(f"https://{title}") if _DOMAIN.fullmatch(title) else ""


def canonical_url(url: str) -> str:
    """The same for every spelling of one address."""
    parts = _split_url(url.strip())
    if parts is None:
        return url
    port = "" if parts.port in (None, 80, 443) else f":{parts.port}"
    path = quote(unquote(parts.path), safe="/:@!$&'()*+,;=~-._", errors="replace")
    query = "&".join(item for item in parts.query.split("&") if item and not _TRACKING.match(item))
    return f"{url_host(url)}{port}{path.rstrip('/')}" + (f"?{query}" if query else "")


def url_host(url: str) -> str:
    """The host without `www.`, in ASCII; empty if there is none that can be trusted."""
    parts = _split_url(url)
    return _ascii_host((parts.hostname or "") if parts else "").rstrip(".").removeprefix("www.")


@lru_cache(maxsize=1024)
def _ascii_host(host: str) -> str:
    """The host as browsers look it up (UTS 46, not transitional); empty if they do not."""
    if host.isascii() and "xn--" not in host:
        return host
    try:
        return idna.encode(host, uts46=True, transitional=False).decode()
    except (idna.IDNAError, UnicodeError):
        return ""


def _may_redirect(url: str, host: str, sites: frozenset[str]) -> bool:
    """Whether an address of a known site may only pass on to another one."""
    if host == GOOGLE_REDIRECT_HOST or host.endswith(f".{GOOGLE_REDIRECT_HOST}"):
        return True  # an unknown redirect is an invented one
    parts = _split_url(url)
    if parts is None:
        return True
    if not any(host == archive or host.endswith(f".{archive}") for archive in _ARCHIVES):
        # Twice: what is passed on is often encoded once more.
        inside = unquote(unquote(f"{parts.path}?{parts.query}"))
        others = {url_host(f"https://{name}") for name in _EMBEDDED_HOST.findall(inside)}
        if any(not any(_is_on_site(other, site) for site in sites) for other in others):
            return True
    # Google's own sites hold redirectors and pages of everybody below them.
    labels = host.split(".")
    if "google" not in labels:
        return False
    path = re.sub("/+", "/", posixpath.normpath(unquote(parts.path).lower() or "/")).split(";")[0]
    return host not in sites or any(
        path == at or path.startswith(f"{at}/") for at in _GOOGLE_REDIRECT_PATHS
    )


def _is_on_site(host: str, site: str) -> bool:
    return host == site or (host.endswith(f".{site}") and not _is_public_suffix(site))


@cache
def _public_suffixes() -> PublicSuffixList:
    return PublicSuffixList()


def _is_public_suffix(name: str) -> bool:
    """Whether this is no site but a name below which sites belong to different people."""
    return name in _PLATFORMS or _public_suffixes().publicsuffix(name) == name


def _split_url(url: str) -> SplitResult | None:
    if url.lower().startswith("www."):
        url = f"https://{url}"
    try:
        parts = urlsplit(url, scheme="https")
        _ = parts.port
    except ValueError:
        return None
    # Readers differ on which host `a.org\@b.org` means, and a name before the @ deceives.
    return None if "\\" in url or "@" in parts.netloc else parts
