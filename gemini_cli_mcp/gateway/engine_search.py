"""Search for a model: with the engines of its request, and the options of its hosted tool."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from gemini_cli_mcp.call_context import CallContext
from gemini_cli_mcp.errors import InvalidInput, NoResults, to_public_error
from gemini_cli_mcp.gateway.search_options import HostedSearchOptions
from gemini_cli_mcp.gateway.search_runner import SearchArguments, SearchFailure, SearchOutcome
from gemini_cli_mcp.research.requests import WebSearchRequest, parse_web_search
from gemini_cli_mcp.research.results import WebSearchResult
from gemini_cli_mcp.research.web_search import EngineProviders, web_search
from gemini_cli_mcp.sanitize import redact_known, replace_unsafe_chars
from gemini_cli_mcp.settings.engines import Engine, Engines
from gemini_cli_mcp.types import Hit


@dataclass(frozen=True)
class SearchScope:
    """What a client's request allows its searches."""

    owner: str
    engines: Engines
    tools: Sequence[object]
    """The request's tools: a hosted search tool may have options."""


ScopedSearch = Callable[[SearchArguments, SearchScope], Awaitable[SearchOutcome]]
"""Runs one search for a request. Does not raise."""


class EngineSearch:
    """Searches with the configured engines."""

    def __init__(self, providers: EngineProviders) -> None:
        self._providers = providers
        self._timeout = providers.settings.timeout
        self._secrets = providers.settings.secrets
        """Redacted from everything that a model or client sees."""

    async def search(self, arguments: SearchArguments, scope: SearchScope) -> SearchOutcome:
        engine = scope.engines.get(arguments.engine or scope.engines.default or "")
        if engine is None:
            engine_ids = ", ".join(engine.id for engine in scope.engines.engines)
            return SearchFailure(f"`engine` must be one of: {engine_ids}.", InvalidInput.code)
        options = HostedSearchOptions.from_tools(scope.tools)
        try:
            request = _parse_request(arguments, engine, scope.engines, options)
            context = CallContext(scope.owner, timeout=self._timeout)
            result = await web_search(request, context, self._providers)
        except Exception as error:  # noqa: BLE001 - every failure is reported to the model
            public_error = to_public_error(error)
            return SearchFailure(self._clean(public_error.message), public_error.code)
        return self._clean_result(result, options)

    def _clean_result(self, result: WebSearchResult, options: HostedSearchOptions) -> SearchOutcome:
        hits = options.filter_hits([self._clean_hit(hit) for hit in result.hits])
        if not hits:
            domains = ", ".join(options.domains)
            return SearchFailure(f"Nothing was found on {domains}.", NoResults.code)
        summary, engine = self._clean(result.summary), self._clean(result.engine)
        return replace(result, hits=hits, summary=summary, engine=engine)

    def _clean_hit(self, hit: Hit) -> Hit:
        return Hit(
            self._clean(hit.title),
            self._clean(hit.url),
            self._clean(hit.source),
            None if hit.date is None else self._clean(hit.date),
            None if hit.snippet is None else self._clean(hit.snippet),
        )

    def _clean(self, text: str) -> str:
        return replace_unsafe_chars(redact_known(text, self._secrets))


def _parse_request(
    arguments: SearchArguments, engine: Engine, engines: Engines, options: HostedSearchOptions
) -> WebSearchRequest:
    query = arguments.query
    if isinstance(query, str):
        query = options.apply_to_query(query)
    count = options.count if arguments.count is None else arguments.count
    others = {"engine": engine.id, "recency": arguments.recency, "count": count}
    return parse_web_search({"query": query, **others}, engines)
