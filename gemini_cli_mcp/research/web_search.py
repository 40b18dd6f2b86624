"""`web_search`: hits and a summary from the selected engine, never from another one."""

import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import anyio
from anyio import to_thread

from gemini_cli_mcp.call_context import CallContext
from gemini_cli_mcp.errors import (
    CliNotFound,
    ConfigError,
    GeminiMcpError,
    InvalidInput,
    NoResults,
    NotGrounded,
    NotSignedIn,
    QuotaExhausted,
    RateLimited,
    to_public_error,
)
from gemini_cli_mcp.providers.base import GroundingOptions, Provider
from gemini_cli_mcp.providers.glm import EngineAnswer, GlmClient
from gemini_cli_mcp.providers.registry import ProviderRegistry, without_account_keys
from gemini_cli_mcp.research.citation_gate import check_report
from gemini_cli_mcp.research.evidence import source_domain
from gemini_cli_mcp.research.grounded_search import ask_until_grounded
from gemini_cli_mcp.research.hits import normalize_hits, renumber_marks, summarize_hits
from gemini_cli_mcp.research.requests import WebSearchRequest
from gemini_cli_mcp.research.results import OptionSupport, WebSearchResult
from gemini_cli_mcp.research.retry import Sleep, with_retries
from gemini_cli_mcp.sanitize import replace_unsafe_chars
from gemini_cli_mcp.settings.engines import DEFAULT_HITS, RECENCY_DAYS, Engine, EngineTarget
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.types import Hit, ProcessUse

logger = logging.getLogger(__name__)

RECENCY_WORDS = {"oneDay": "day", "oneWeek": "week", "oneMonth": "month", "oneYear": "year"}
MAX_SUMMARY_CHARS = 16_000

ACCOUNT_ERRORS = (NotSignedIn, QuotaExhausted, RateLimited, CliNotFound)
"""Account errors that another account for the same model may not have."""


@dataclass(frozen=True)
class _TargetAnswer:
    """What a target answered, and how it got the caller's options."""

    target: EngineTarget
    answer: EngineAnswer
    applied: Mapping[str, OptionSupport]
    process: ProcessUse | None = None
    """How the run got its process, if that is known."""


class EngineProviders:
    """The providers behind the configured engines."""

    def __init__(
        self,
        settings: Settings,
        registry: ProviderRegistry,
        environ: Mapping[str, str],
        sleep: Sleep = anyio.sleep,
    ) -> None:
        self.settings = settings
        self.sleep = sleep
        self._registry = registry
        self._environ = environ
        self._providers: dict[EngineTarget, Provider] = {}

    async def run_pools(self) -> None:
        """Keep processes of the gemini CLI until cancelled; at first for the default engine."""
        engines = self.settings.engines
        engine = engines.get(engines.default or "")
        target = (engine or engines.engines[0]).targets[0]
        provider = None
        if engine and target.family == "gemini-cli":
            with suppress(NotSignedIn):  # searches will report it
                provider = self.provider(target)
        await self._registry.run_engine_pools(provider, self.grounding_options(target))

    def provider(self, target: EngineTarget) -> Provider:
        """Return the provider that serves a Google target with the target's own account."""
        if target not in self._providers:
            environ = without_account_keys(self.settings, self._environ)
            if target.key_variable:
                key = self._environ.get(target.key_variable)
                if not key:
                    raise NotSignedIn(
                        f"The account {target.alias!r} has no API key.",
                        hint=f"Set {target.key_variable} in the server's environment.",
                        terminal_hint=f"Set {target.key_variable}.",
                    )
                # No other credentials may be used instead of this key.
                for name in ("GOOGLE_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI"):
                    environ.pop(name, None)
                environ["GEMINI_API_KEY"] = key
            self._providers[target] = self._registry.create(target.family, environ)
        return self._providers[target]

    def glm_client(self, engine: Engine, target: EngineTarget) -> GlmClient:
        """Return a client for a GLM target with the target's own account."""
        key = self._environ.get(target.key_variable or "ZAI_API_KEY")
        return GlmClient(engine.glm, key, self.settings.limits.glm_timeout)

    def grounding_options(self, target: EngineTarget) -> GroundingOptions:
        return GroundingOptions(target.model, self.settings.grounded_thinking)


async def web_search(
    request: WebSearchRequest, context: CallContext, engines: EngineProviders
) -> WebSearchResult:
    """Search with the requested engine; raise a GeminiMcpError that names the engine."""
    started = time.monotonic()
    try:
        with context.enforce():
            found = await _ask_accounts(request, context, engines)
        hits = _require_hits(normalize_hits(found.answer.hits, request.count))
    except InvalidInput as error:
        # The caller's arguments are valid, so the engine is misconfigured.
        hint = "Fix the engine's providerKey in the file set in GEMINI_MCP_WEB_SEARCH."
        raise _naming_engine(request, ConfigError(error.message, hint=hint)) from None
    except Exception as error:  # noqa: BLE001 - every error must name the engine
        raise _naming_engine(request, to_public_error(error)) from None
    summary = found.answer.summary
    if summary is not None:
        summary = renumber_marks(summary, found.answer.hits, hits)
    return WebSearchResult(
        summary=replace_unsafe_chars(
            summarize_hits(hits, MAX_SUMMARY_CHARS) if summary is None else summary
        ),
        summary_from="hits" if summary is None else "model",
        hits=hits,
        engine=request.engine.id,
        target=found.target,
        question=request.question,
        recency=request.recency,
        count=request.count,
        applied=found.applied,
        duration=time.monotonic() - started,
        process=found.process,
    )


async def _ask_accounts(
    request: WebSearchRequest, context: CallContext, engines: EngineProviders
) -> _TargetAnswer:
    """Return the answer of the first account that succeeds."""
    *others, last = request.engine.targets
    for target in others:
        try:
            return await _ask_target(request, target, context, engines)
        except ACCOUNT_ERRORS as error:
            logger.warning(
                "Engine %s: account %s failed (%s)", request.engine.id, target.alias, error.code
            )
    return await _ask_target(request, last, context, engines)


async def _ask_target(
    request: WebSearchRequest, target: EngineTarget, context: CallContext, engines: EngineProviders
) -> _TargetAnswer:
    if target.family == "glm":
        return await _ask_glm(request, target, context, engines)
    return await _ask_google(request, target, context, engines)


async def _ask_glm(
    request: WebSearchRequest, target: EngineTarget, context: CallContext, engines: EngineProviders
) -> _TargetAnswer:
    context.progress(f"asking {request.engine.id}")
    glm = engines.glm_client(request.engine, target)
    answer = await with_retries(
        lambda: glm.search(target.model, request.question, request.recency, request.count),
        context,
        engines.sleep,
    )
    # Truncated here, not in the end: a citation-checked summary must not be cut afterwards.
    if answer.summary is not None:
        answer = replace(answer, summary=answer.summary[:MAX_SUMMARY_CHARS])
    return _TargetAnswer(target, answer, {"recency": "field", "count": "field"})


async def _ask_google(
    request: WebSearchRequest, target: EngineTarget, context: CallContext, engines: EngineProviders
) -> _TargetAnswer:
    options = engines.grounding_options(target)
    applied: dict[str, OptionSupport] = {}
    query = request.question
    if request.count != DEFAULT_HITS:
        query += f" (at least {request.count} sources)"
        applied["count"] = "prompt"
    days = RECENCY_DAYS[request.recency]
    if days is not None and target.family == "gemini-api":
        options = replace(options, since=datetime.now(UTC) - timedelta(days=days))
        applied["recency"] = "filter"
    elif days is not None:
        query += f" (only pages of the last {RECENCY_WORDS[request.recency]})"
        applied["recency"] = "prompt"
    provider = engines.provider(target)
    try:
        reply = await ask_until_grounded(provider, query, options, context, engines.sleep)
    except NotGrounded:
        raise NoResults("The search returned no hits.") from None
    search = next(search for search in reply.searches if search.sources)
    hits = tuple(
        Hit(source.title or source_domain(source), source.url, source_domain(source))
        for source in search.sources
    )
    # In a worker thread: a hostile text must not block the event loop.
    checked = await to_thread.run_sync(
        check_report, search.text[:MAX_SUMMARY_CHARS], [reply], abandon_on_cancel=True
    )
    return _TargetAnswer(target, EngineAnswer(checked.text, hits), applied, reply.process)


def _require_hits(hits: tuple[Hit, ...]) -> tuple[Hit, ...]:
    if not hits:
        raise NoResults("The search returned no hits.")
    return hits


def _naming_engine(request: WebSearchRequest, error: GeminiMcpError) -> GeminiMcpError:
    return error.with_message(f"Engine {request.engine.id!r}: {error.message}")
