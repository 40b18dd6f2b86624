"""The ledger of what a run searched and fetched, and how it covers a URL.

The ledger is built from the provider's own records, never from the model's claims. Search
results are redirects that identify only the site, so a URL is `seen` (in the ledger), known
by its `domain` only, or `unseen`.
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
"""Why a round's claim to be verified is rejected; `rejected`: so is its report."""

MAX_HOST_CHARS = 253
_TRACKING_PARAMETER = re.compile(r"(?:utm_\w+|gclid|fbclid|msclkid|mc_[ce]id|igshid|ref_src)=")
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
"""Archives, whose URLs contain the URL of the archived page."""
_PLATFORMS = frozenset(
    {
        *("wordpress.com", "medium.com", "substack.com", "tumblr.com", "weebly.com"),
        *("livejournal.com", "narod.ru"),
    }
)
"""Platforms whose subdomains belong to users, in addition to the public suffix list."""


@dataclass(frozen=True)
class Ledger:
    """The searches and fetches in the provider records of one or more runs."""

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
        """All sources found or fetched, without duplicates, in the order first seen."""
        results = (source for search in self.searches for source in search.sources)
        pages = (page for fetch in self.fetches for page in fetch.pages)
        return list({source.url: source for source in (*results, *pages)}.values())

    @property
    def queries(self) -> list[str]:
        """The queries Google ran where known, otherwise the requested ones."""
        query_lists = (search.google_queries or (search.query,) for search in self.searches)
        return list(dict.fromkeys(query for queries in query_lists for query in queries if query))

    @property
    def errors(self) -> list[str]:
        """Error messages of failed searches and fetches."""
        return [call.error for call in (*self.searches, *self.fetches) if call.error]

    @property
    def has_sources(self) -> bool:
        """Whether any search returned sources."""
        return any(search.sources for search in self.searches)

    @property
    def every_search_failed(self) -> bool:
        return bool(self.searches) and all(search.error for search in self.searches)

    @cached_property
    def _canonical_urls(self) -> frozenset[str]:
        return frozenset(canonical_url(source.url) for source in self.sources)

    @cached_property
    def sites(self) -> list[str]:
        """Distinct sites of the sources, where known."""
        return list(
            dict.fromkeys(site for source in self.sources if (site := source_domain(source)))
        )

    @cached_property
    def _site_set(self) -> frozenset[str]:
        return frozenset(self.sites)

    def link_status(self, url: str) -> LinkStatus:
        """Return how the ledger covers this URL."""
        if canonical_url(url) in self._canonical_urls:
            return "seen"
        host = url_host(url)
        if not host or len(host) > MAX_HOST_CHARS or _may_redirect(url, host, self._site_set):
            return "unseen"
        parts = host.split(".")
        parents = {".".join(parts[start:]) for start in range(len(parts) - 1)} & self._site_set
        # Sites below github.io or co.uk have different owners.
        is_known = host in parents or not all(map(_is_public_suffix, parents))
        return "domain" if is_known else "unseen"


def search_issue(reply: Reply) -> VerificationIssue | None:
    """Return why a run does not prove a successful search, or None if it does.

    A plain-text CLI provides no proof, so the model's claim has to suffice.
    """
    if reply.evidence == "none":
        return None
    # Events show that a search succeeded, but not what it returned.
    outcomes = [
        search.sources if reply.evidence == "ledger" else not search.error
        for search in reply.searches
    ]
    if not outcomes:
        return "no_search"
    if not any(outcomes):
        return "search_failed"
    return "record_only" if reply.record_only else None


def source_domain(source: Source) -> str:
    """Return the site of a source; Google's redirects carry it in the title."""
    host = url_host(source.url)
    if host != GOOGLE_REDIRECT_HOST:
        return host
    title = source.title.strip().lower()
    return url_host(f"https://{title}") if _DOMAIN.fullmatch(title) else ""


def canonical_url(url: str) -> str:
    """Return a form that is the same for all spellings of a URL."""
    parts = _split_url(url.strip())
    if parts is None:
        return url
    port = "" if parts.port in (None, 80, 443) else f":{parts.port}"
    path = quote(unquote(parts.path), safe="/:@!$&'()*+,;=~-._", errors="replace")
    query = "&".join(
        item for item in parts.query.split("&") if item and not _TRACKING_PARAMETER.match(item)
    )
    return f"{url_host(url)}{port}{path.rstrip('/')}" + (f"?{query}" if query else "")


def url_host(url: str) -> str:
    """Return the ASCII host without `www.`, or an empty string if there is no trustworthy one."""
    parts = _split_url(url)
    return _ascii_host((parts.hostname or "") if parts else "").rstrip(".").removeprefix("www.")


@lru_cache(maxsize=1024)
def _ascii_host(host: str) -> str:
    """Return the host as browsers resolve it (UTS 46, non-transitional); empty if invalid."""
    if host.isascii() and "xn--" not in host:
        return host
    try:
        return idna.encode(host, uts46=True, transitional=False).decode()
    except (idna.IDNAError, UnicodeError):
        return ""


def _may_redirect(url: str, host: str, sites: frozenset[str]) -> bool:
    """Whether a URL on a known site may only redirect to another site."""
    if host == GOOGLE_REDIRECT_HOST or host.endswith(f".{GOOGLE_REDIRECT_HOST}"):
        return True  # a redirect that is not in the ledger is invented
    parts = _split_url(url)
    if parts is None:
        return True
    if not any(host == archive or host.endswith(f".{archive}") for archive in _ARCHIVES):
        # Unquote twice: redirect targets are often double-encoded.
        decoded = unquote(unquote(f"{parts.path}?{parts.query}"))
        matches = _EMBEDDED_HOST.finditer(decoded)
        targets = {url_host(f"https://{match[1]}") for match in matches}
        if any(not any(_is_on_site(target, site) for site in sites) for target in targets):
            return True
    # Google's own domains host redirectors and user content.
    labels = host.split(".")
    if "google" not in labels:
        return False
    path = re.sub("/+", "/", posixpath.normpath(unquote(parts.path).lower() or "/")).split(";")[0]
    return host not in sites or any(
        path == prefix or path.startswith(f"{prefix}/") for prefix in _GOOGLE_REDIRECT_PATHS
    )


def _is_on_site(host: str, site: str) -> bool:
    return host == site or (host.endswith(f".{site}") and not _is_public_suffix(site))


@cache
def _public_suffixes() -> PublicSuffixList:
    return PublicSuffixList()


def _is_public_suffix(name: str) -> bool:
    """Whether this is not a site itself but a parent of sites with different owners."""
    return name in _PLATFORMS or _public_suffixes().publicsuffix(name) == name


def _split_url(url: str) -> SplitResult | None:
    if url.lower().startswith("www."):
        url = f"https://{url}"
    try:
        parts = urlsplit(url, scheme="https")
        _ = parts.port
    except ValueError:
        return None
    # Parsers disagree on the host of `a.org\@b.org`, and user info before the @ is deceptive.
    return None if "\\" in url or "@" in parts.netloc else parts
