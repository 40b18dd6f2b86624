"""Options of a client's hosted `web_search` tool, as far as engines support them."""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from gemini_cli_mcp.gateway.tool_injection import is_hosted_search_tool
from gemini_cli_mcp.json_values import list_or_empty, object_or_empty
from gemini_cli_mcp.types import MAX_QUERY_CHARS, Hit

HITS_BY_CONTEXT_SIZE = {"low": 5, "medium": 10, "high": 20}
"""Number of hits per `search_context_size`."""
MAX_DOMAINS = 20


@dataclass(frozen=True)
class HostedSearchOptions:
    """The options of one request."""

    domains: tuple[str, ...] = ()
    """If set, only hits on these domains and their subdomains."""
    location: str = ""
    count: int | None = None

    @classmethod
    def from_tools(cls, tools: Sequence[object]) -> "HostedSearchOptions":
        tool = object_or_empty(next(filter(is_hosted_search_tool, tools), None))
        filters = object_or_empty(tool.get("filters"))
        location = object_or_empty(tool.get("user_location"))
        # Chat completions nest the location in `approximate`.
        location = object_or_empty(location.get("approximate")) or location
        parts = [location.get(name) for name in ("city", "region", "country")]
        domains = [_domain(domain) for domain in list_or_empty(filters.get("allowed_domains"))]
        return cls(
            tuple(domain for domain in domains if domain)[:MAX_DOMAINS],
            ", ".join(part[:60] for part in parts if isinstance(part, str) and part),
            HITS_BY_CONTEXT_SIZE.get(str(tool.get("search_context_size"))),
        )

    def apply_to_query(self, query: str) -> str:
        """Return the query with the options that engines only accept as text."""
        parts = [query]
        if self.domains:
            parts.append(" OR ".join(f"site:{domain}" for domain in self.domains))
        if self.location:
            parts.append(f"(for a user in {self.location})")
        return " ".join(parts) if len(query) < MAX_QUERY_CHARS - 2000 else query

    def filter_hits(self, hits: Sequence[Hit]) -> tuple[Hit, ...]:
        """Return the hits on allowed domains: engines treat `site:` only as a hint."""
        return tuple(hit for hit in hits if not self.domains or self._is_allowed(hit))

    def _is_allowed(self, hit: Hit) -> bool:
        # Google's URLs are redirects: the source names the target site.
        hosts = [_domain(hit.source), _domain(hit.url)]
        return any(
            host == domain or host.endswith(f".{domain}")
            for host in hosts
            for domain in self.domains
        )


def _domain(value: object) -> str:
    text = str(value or "").strip().lower()
    try:
        host = urlsplit(text if "//" in text else f"//{text}").hostname
    except ValueError:
        return ""
    return (host or "").removeprefix("www.")
