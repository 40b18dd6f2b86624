"""Run prompts with the official `gemini` CLI, in a shared ACP process or a dedicated one.

A dedicated process serves one run: it reads the prompt from stdin and writes events to stdout.
"""

import asyncio
import errno
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.lowlevel
from anyio import to_thread

from gemini_cli_mcp import prompts
from gemini_cli_mcp.call_context import CallContext, FindingsReporter
from gemini_cli_mcp.errors import CliNotFound, ExecutionFailed, GeminiMcpError, InvalidInput
from gemini_cli_mcp.process.run import Completed, run
from gemini_cli_mcp.providers.base import GroundingOptions, Reply
from gemini_cli_mcp.providers.gemini.acp_client import AgentUnavailable
from gemini_cli_mcp.providers.gemini.acp_pool import AcpPool
from gemini_cli_mcp.providers.gemini.events import SEARCH_TOOL, EventLog
from gemini_cli_mcp.providers.gemini.home import (
    Profile,
    grounded_profile,
    is_model_alias,
    search_profile,
)
from gemini_cli_mcp.providers.gemini.launcher import Launcher, RunLaunch
from gemini_cli_mcp.providers.gemini.run_result import RunResult, read_run_result
from gemini_cli_mcp.providers.gemini.sign_ins import SignIns
from gemini_cli_mcp.providers.quota_breaker import QuotaBreakers, breaker_key
from gemini_cli_mcp.providers.run_limiter import RunLimiter
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.workspace import Workspace

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_ACP_ATTEMPTS = 2
"""Attempts in ACP processes before a run falls back to a dedicated process."""
NO_SIGN_IN_EXIT_CODE = 41
"""The CLI's exit code if it finds no sign-in; a rejected sign-in exits differently."""


@dataclass(frozen=True)
class _RunRequest:
    """What to run for which call."""

    profile: Profile
    prompt: str
    context: CallContext
    file: Path | None = None
    """File of a correction."""
    accept_failed_with_sources: bool = False
    """Whether a failed run that found sources counts as a success."""

    def failure(self, result: RunResult) -> GeminiMcpError | None:
        """Return why the run failed; None if it succeeded."""
        if self.accept_failed_with_sources and result.has_sources:
            return None
        return result.failure


class GeminiCliProvider:
    """The `gemini` provider."""

    name = "gemini"
    supports_thoughts = False

    def __init__(
        self,
        settings: Settings,
        workspace: Workspace,
        environ: Mapping[str, str],
        limiter: RunLimiter,
        breakers: QuotaBreakers,
        *,
        pooled_profile: Profile | None = None,
    ) -> None:
        """With `pooled_profile`, keep ACP processes for runs with this profile."""
        self.configured_model = settings.model
        self._settings = settings
        self._secrets = settings.secrets
        self._environ = environ
        self._search_profile = search_profile(settings.model)
        self._correction_profile = Profile("correction", (), settings.correction_model)
        self._limiter = limiter
        self._breakers = breakers
        self._sign_ins = SignIns(environ)
        self._launcher = Launcher(settings, workspace, environ, self._sign_ins)
        self._pool = (
            AcpPool(settings, pooled_profile, self._launcher, self._sign_ins, limiter)
            if pooled_profile
            else None
        )

    async def ask(self, prompt: str, context: CallContext, file: Path | None = None) -> Reply:
        """Answer the prompt with web search available.

        With `file` the run is a correction: it has no tools, uses the correction model, and runs
        in the folder of that file, so that `@name` in the prompt inlines it.
        """
        profile = self._correction_profile if file else self._search_profile
        return (await self._run(_RunRequest(profile, prompt, context, file))).reply

    @property
    def has_ready_process(self) -> bool:
        """Whether an ACP process is ready for a search."""
        return self._pool is not None and self._pool.is_ready

    async def run_pool(self) -> None:
        """Keep ACP processes ready until cancelled."""
        if self._pool:
            await self._pool.run()

    async def grounded_search(
        self, query: str, options: GroundingOptions, context: CallContext
    ) -> Reply:
        """Have the CLI run one search, a separate API request without other tools.

        The main model's answer is not used, and the run may even fail as long as the CLI has
        recorded the search results.
        """
        if options.model != "flash" and is_model_alias(options.model):
            raise InvalidInput(
                f"`model`: the gemini CLI cannot search with the alias {options.model!r}. Use a "
                "full name such as gemini-2.5-flash; the provider `api` accepts the alias."
            )
        prompt = prompts.render(
            "grounded-prompt", query=query, mark=secrets.token_hex(4), tool=SEARCH_TOOL
        )
        profile = grounded_profile(options)
        result = await self._run(
            _RunRequest(profile, prompt, context, accept_failed_with_sources=True)
        )
        model = result.search_model if options.model == "flash" else options.model
        return replace(result.reply, model=model)

    async def _run(self, request: _RunRequest) -> RunResult:
        """Run in an ACP process if the limiter assigns one, otherwise in a dedicated process.

        A run that fails because its ACP process exits is repeated transparently.
        """
        quota_key = self._require_quota(request.profile)
        pool = self._pool if self._pool and self._pool.profile == request.profile else None
        for _ in range(MAX_ACP_ATTEMPTS if pool else 0):
            async with self._limiter.acquire(
                request.context, pool.find_slot if pool else None
            ) as slot:
                if slot is None:
                    with self._breakers.guard(quota_key):
                        return await self._run_dedicated(request)
                with suppress(AgentUnavailable), self._breakers.guard(quota_key):
                    result = await slot.run(request.prompt, request.context)
                    if error := request.failure(result):
                        raise error
                    return result
            logger.info("ACP process lost: repeating its run")
        async with self._limiter.acquire(request.context):
            with self._breakers.guard(quota_key):
                return await self._run_dedicated(request)

    def _require_quota(self, profile: Profile) -> str:
        """Return the key of the run's quota; raise before queueing if that quota is exhausted."""
        sign_in = next(iter(self._sign_ins.available()), None)
        api_keys = [self._environ.get(name) for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY")]
        quota_key = breaker_key("gemini", sign_in, *api_keys, profile.model)
        self._breakers.raise_if_open(quota_key)
        return quota_key

    async def _run_dedicated(self, request: _RunRequest) -> RunResult:
        """Run in a new process, trying each sign-in in turn."""
        binary = await to_thread.run_sync(self._launcher.find_binary)
        request.context.progress("starting gemini")
        launch = await _prepare(
            lambda: self._launcher.prepare_run(binary, request.profile, request.file)
        )
        while True:
            result = await self._run_process(launch, request)
            error = request.failure(result)
            if result.rejected_flags:
                prepare_again = self._launcher.prepare_without_events
            elif error is None:
                self._sign_ins.record_success(launch.sign_in)
                return result
            elif result.exit_code == NO_SIGN_IN_EXIT_CODE and launch.other_sign_ins:
                self._sign_ins.record_missing(launch.sign_in)
                prepare_again = self._launcher.prepare_next_sign_in
            else:
                raise error
            launch = await _prepare(partial(prepare_again, launch))

    async def _run_process(self, launch: RunLaunch, request: _RunRequest) -> RunResult:
        """Run one process; leave none of its files behind, even if cancelled."""
        context = request.context
        events = EventLog(context.progress, self._settings.limits, self._secrets)
        findings = FindingsReporter(context)

        async def should_stop() -> bool:
            if not (session_id := events.session_id):
                return False
            findings.report(await to_thread.run_sync(launch.read_api_calls, session_id))
            return launch.failing_calls.check(context)

        try:
            completed = await self._run_command(launch, request.prompt, events, should_stop)
            result = await to_thread.run_sync(
                read_run_result, launch, completed, events, self._secrets
            )
        except BaseException:
            await _finish_in_thread(lambda: launch.delete_files(events.session_id))
            raise
        findings.report_rest(result.reply.searches, result.reply.fetches, result.reply.usage)
        return result

    async def _run_command(
        self,
        launch: RunLaunch,
        prompt: str,
        events: EventLog,
        should_stop: Callable[[], Awaitable[bool]],
    ) -> Completed:
        try:
            return await run(
                launch.argv,
                stdin=prompt.encode("utf-8", "replace"),
                env=launch.env,
                cwd=launch.cwd,
                on_line=events.feed_line,
                idle_timeout=lambda: events.idle_limit,
                should_stop=should_stop,
                # An upper bound only: the caller's own deadline expires first.
                timeout=max(self._settings.timeout, self._settings.round_timeout),
                scratch=launch.scratch,
            )
        except OSError as error:
            is_unusable = error.errno in (errno.ENOENT, errno.EACCES, errno.ENOEXEC)
            error_type = CliNotFound if is_unusable else ExecutionFailed
            raise error_type(f"{launch.argv[0]} cannot be run: {error.strerror}.") from None


async def _prepare(prepare: Callable[[], RunLaunch]) -> RunLaunch:
    """Prepare a run; if this task is cancelled meanwhile, delete what was prepared."""
    launch, was_cancelled = await _finish_in_thread(prepare)
    try:
        if was_cancelled:
            raise asyncio.CancelledError  # noqa: TRY301 - like a scope that was cancelled
        await anyio.lowlevel.checkpoint_if_cancelled()
    except BaseException:
        await _finish_in_thread(lambda: launch.delete_files(None))
        raise
    return launch


async def _finish_in_thread(work: Callable[[], T]) -> tuple[T, bool]:
    """Do blocking file work to its end; return also whether `Task.cancel()` was called meanwhile.

    What it creates must not outlive the workspace. A shield blocks cancel scopes, but not
    `Task.cancel()` from Ctrl-C or from an HTTP server that aborts a request.
    """
    was_cancelled = False
    working = asyncio.ensure_future(to_thread.run_sync(work))
    with anyio.CancelScope(shield=True):
        while not working.done():
            try:
                await asyncio.wait({working})
            except asyncio.CancelledError:
                was_cancelled = True
    return working.result(), was_cancelled
