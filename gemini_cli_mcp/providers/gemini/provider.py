"""Run prompts with the official `gemini` CLI, in a process of their own or in a shared one."""

import logging
import secrets
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from anyio import to_thread

from gemini_cli_mcp import prompts
from gemini_cli_mcp.call_context import CallContext
from gemini_cli_mcp.errors import GeminiMcpError, InvalidInput
from gemini_cli_mcp.providers.base import GroundingOptions, Reply
from gemini_cli_mcp.providers.gemini.acp_client import AgentUnavailable
from gemini_cli_mcp.providers.gemini.acp_process import AcpSlot
from gemini_cli_mcp.providers.gemini.dedicated_run import DedicatedRun, prepare_launch
from gemini_cli_mcp.providers.gemini.events import SEARCH_TOOL
from gemini_cli_mcp.providers.gemini.home import (
    Profile,
    grounded_profile,
    is_model_alias,
    search_profile,
)
from gemini_cli_mcp.providers.gemini.launcher import Launcher, ProcessKind, RunLaunch
from gemini_cli_mcp.providers.gemini.process_pools import ProcessPools, ProcessSource
from gemini_cli_mcp.providers.gemini.ready_pool import ReadySlot
from gemini_cli_mcp.providers.gemini.run_result import RunResult
from gemini_cli_mcp.providers.gemini.sign_ins import SignIns
from gemini_cli_mcp.providers.quota_breaker import QuotaBreakers, breaker_key
from gemini_cli_mcp.providers.run_limiter import RunLimiter
from gemini_cli_mcp.providers.run_slots import Grant
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.workspace import Workspace

logger = logging.getLogger(__name__)

MAX_POOL_ATTEMPTS = 2
"""Attempts of a run that may use processes that exist already, before it gets its own."""
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
        pools: ProcessPools | None,
    ) -> None:
        """`pools` belong to the whole program, if it keeps processes."""
        self.configured_model = settings.model
        self._settings = settings
        self._environ = environ
        self._search_profile = search_profile(settings.model)
        self._correction_profile = Profile("correction", (), settings.correction_model)
        self._limiter = limiter
        self._breakers = breakers
        self._launcher = Launcher(settings, workspace, environ, SignIns(environ))
        self._pools = pools

    async def ask(self, prompt: str, context: CallContext, file: Path | None = None) -> Reply:
        """Answer the prompt with web search available.

        With `file` the run is a correction: it has no tools, uses the correction model, and runs
        in the folder of that file, so that `@name` in the prompt inlines it.
        """
        profile = self._correction_profile if file else self._search_profile
        return (await self._run(_RunRequest(profile, prompt, context, file))).reply

    @property
    def search_kind(self) -> ProcessKind:
        """The processes that can serve research runs."""
        return ProcessKind(self._launcher, self._search_profile)

    def grounded_kind(self, options: GroundingOptions) -> ProcessKind:
        """Return the processes that can serve dedicated searches with these options."""
        return ProcessKind(self._launcher, grounded_profile(options))

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
        """Run where the limiter permits it; repeat a run that is lost with its process."""
        quota_key = await to_thread.run_sync(self._quota_key, request.profile)
        self._breakers.raise_if_open(quota_key)
        if not self._pools or request.file:  # a correction has its own working folder
            return await self._run_once(request, None, quota_key)
        source = ProcessSource(self._pools, ProcessKind(self._launcher, request.profile))
        with source.in_use():
            for _ in range(MAX_POOL_ATTEMPTS):
                with suppress(AgentUnavailable):
                    return await self._run_once(request, source, quota_key)
                logger.info("ACP process lost: repeating its run")
            return await self._run_once(request, None, quota_key)

    async def _run_once(
        self, request: _RunRequest, source: ProcessSource | None, quota_key: str
    ) -> RunResult:
        """Run in the kind of process that the limiter grants; AgentUnavailable if it is lost."""
        async with self._limiter.acquire(request.context, source) as grant:
            with self._breakers.guard(quota_key):
                result = await self._run_granted(grant, request)
                if error := request.failure(result):
                    raise error
                return result

    async def _run_granted(
        self, grant: Grant[ReadySlot, AcpSlot], request: _RunRequest
    ) -> RunResult:
        process = grant.process
        if grant.shared:
            result = await grant.shared.run(request.prompt, request.context)
        elif not (grant.ready and (result := await self._run_ready(grant.ready, request))):
            process = "cold"
            result = await self._run_cold(request)
        self._limiter.count_finished_run(process)
        return replace(result, reply=replace(result.reply, process=process))

    def _quota_key(self, profile: Profile) -> str:
        """Return the key of the run's quota. Call it in a worker thread."""
        sign_in = next(iter(self._launcher.sign_ins.available()), None)
        api_keys = [self._environ.get(name) for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY")]
        return breaker_key("gemini", sign_in, *api_keys, profile.model)

    async def _run_ready(self, slot: ReadySlot, request: _RunRequest) -> RunResult | None:
        """Run in a process that was started ahead; None if it is outdated or lost."""
        with slot.pool.run_started() as on_output:
            ready = await slot.use()
            if ready is None:
                return None
            run = self._dedicated_run(ready.launch, request, on_output)
            result = await run.run_ready(ready.command)
            slot.pool.record_result(ready.kind, ready.spec, was_lost=result is None)
            return result

    async def _run_cold(self, request: _RunRequest) -> RunResult:
        """Run in a new process, trying each sign-in in turn."""
        binary = await to_thread.run_sync(self._launcher.find_binary)
        request.context.progress("starting gemini")
        with self._run_started() as on_output:
            launch = await prepare_launch(
                lambda: self._launcher.prepare_run(binary, request.profile, request.file)
            )
            while True:
                result = await self._dedicated_run(launch, request, on_output).run_cold()
                if result.rejected_flags:
                    prepare_again = self._launcher.prepare_without_events
                elif result.exit_code == NO_SIGN_IN_EXIT_CODE and launch.other_sign_ins:
                    prepare_again = self._launcher.prepare_next_sign_in
                else:
                    return result
                launch = await prepare_launch(partial(prepare_again, launch))

    def _run_started(self) -> AbstractContextManager[Callable[[], None]]:
        """Tell the pool, if there is one, about a run; see `ReadyPool.run_started`."""
        return self._pools.ready.run_started() if self._pools else nullcontext(lambda: None)

    def _dedicated_run(
        self, launch: RunLaunch, request: _RunRequest, on_output: Callable[[], None]
    ) -> DedicatedRun:
        return DedicatedRun(launch, request.prompt, request.context, self._settings, on_output)
