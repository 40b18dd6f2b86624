"""What a client that declares a hosted `web_search` wants of it, as far as engines can."""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from gemini_cli_mcp.gateway.tool_injection import is_hosted
from gemini_cli_mcp.json_values import Object, as_list, as_object
from gemini_cli_mcp.types import MAX_QUERY

COUNTS = {"low": 5, "medium": 10, "high": 20}
"""Hits by `search_context_size`."""
MOST_DOMAINS = 20


@dataclass(frozen=True)
class Wishes:
    """Of one request."""

    domains: tuple[str, ...] = ()
    """Only pages of these, and of what lies below them."""
    place: str = ""
    count: int | None = None

    @classmethod
    def of(cls, tools: Sequence[object]) -> "Wishes":
        tool = as_object(next(filter(is_hosted, tools), None))
        filters = as_object(tool.get("filters"))
        where = as_object(tool.get("user_location"))
        where = as_object(where.get("approximate")) or where  # as chats have it
        parts = [where.get(name) for name in ("city", "region", "country")]
        domains = [_domain(domain) for domain in as_list(filters.get("allowed_domains"))]
        return cls(
            tuple(domain for domain in domains if domain)[:MOST_DOMAINS],
            ", ".join(part[:60] for part in parts if isinstance(part, str) and part),
            COUNTS.get(str(tool.get("search_context_size"))),
        )

    def worded(self, query: str) -> str:
        """The query with what an engine must be told in words."""
        words = [query]
        if self.domains:
            words.append(" OR ".join(f"site:{domain}" for domain in self.domains))
        if self.place:
            words.append(f"(for somebody in {self.place})")
        return " ".join(words) if len(query) < MAX_QUERY - 2000 else query

    def kept(self, hits: Sequence[Object]) -> list[Object]:
        """Those hits that are wanted: engines take the words for advice."""
        return [hit for hit in hits if not self.domains or self._allows(hit)]

    def _allows(self, hit: Object) -> bool:
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
