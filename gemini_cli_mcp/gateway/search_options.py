"""What a client that declares a hosted `web_search` wants of it, as far as engines can."""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from gemini_cli_mcp.gateway.tool_injection import is_hosted_search_tool
from gemini_cli_mcp.json_values import JsonObject, list_or_empty, object_or_empty
from gemini_cli_mcp.types import MAX_QUERY_CHARS

HITS_BY_CONTEXT_SIZE = {"low": 5, "medium": 10, "high": 20}
"""Hits by `search_context_size`."""
MAX_DOMAINS = 20


@dataclass(frozen=True)
class HostedSearchOptions:
    """Of one request."""

    domains: tuple[str, ...] = ()
    """Only pages of these, and of what lies below them."""
    location: str = ""
    count: int | None = None

    @classmethod
    def from_tools(cls, tools: Sequence[object]) -> "HostedSearchOptions":
        tool = object_or_empty(next(filter(is_hosted_search_tool, tools), None))
        filters = object_or_empty(tool.get("filters"))
        location = object_or_empty(tool.get("user_location"))
        location = object_or_empty(location.get("approximate")) or location  # as chats have it
        parts = [location.get(name) for name in ("city", "region", "country")]
        domains = [_domain(domain) for domain in list_or_empty(filters.get("allowed_domains"))]
        return cls(
            tuple(domain for domain in domains if domain)[:MAX_DOMAINS],
            ", ".join(part[:60] for part in parts if isinstance(part, str) and part),
            HITS_BY_CONTEXT_SIZE.get(str(tool.get("search_context_size"))),
        )

    def apply_to_query(self, query: str) -> str:
        """The query with what an engine must be told in words."""
        parts = [query]
        if self.domains:
            parts.append(" OR ".join(f"site:{domain}" for domain in self.domains))
        if self.location:
            parts.append(f"(for somebody in {self.location})")
        return " ".join(parts) if len(query) < MAX_QUERY_CHARS - 2000 else query

    def filter_hits(self, hits: Sequence[JsonObject]) -> list[JsonObject]:
        """Those hits that are wanted: engines take the words for advice."""
        return [hit for hit in hits if not self.domains or self._allows(hit)]

    def _allows(self, hit: JsonObject) -> bool:
        # Google's addresses are redirects: the source tells where they lead.
        hosts = [_domain(hit.get("source")), _domain(hit.get("url"))]
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
