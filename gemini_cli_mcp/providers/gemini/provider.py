"""Ask the official `gemini` CLI: in a warm process where one is ready, else one for the run.

A process of its own gets the prompt by stdin and tells its events by stdout.
"""

import errno
import logging
import secrets
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import anyio.to_thread

from gemini_cli_mcp import prompts
from gemini_cli_mcp.errors import CliNotFound, ExecutionFailed, GeminiMcpError, InvalidInput
from gemini_cli_mcp.process.run import run
from gemini_cli_mcp.providers.base import GroundingOptions, Reply
from gemini_cli_mcp.providers.gemini.acp_client import AgentGone
from gemini_cli_mcp.providers.gemini.acp_pool import AcpPool
from gemini_cli_mcp.providers.gemini.binary import GeminiBinary, child_path, find_gemini
from gemini_cli_mcp.providers.gemini.events import FETCH_TOOL, SEARCH_TOOL, EventLog
from gemini_cli_mcp.providers.gemini.failures import is_usage_error
from gemini_cli_mcp.providers.gemini.home import (
    Home,
    Profile,
    SignIn,
    available_sign_ins,
    is_model_alias,
    prepare_home,
)
from gemini_cli_mcp.providers.gemini.run_result import RunResult
from gemini_cli_mcp.providers.gemini.session_record import read_and_delete_record
from gemini_cli_mcp.providers.gemini.telemetry import read_telemetry
from gemini_cli_mcp.providers.quota_breaker import QuotaBreakers, breaker_key
from gemini_cli_mcp.providers.run_limiter import RunLimiter
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.types import Evidence, ProgressCallback
from gemini_cli_mcp.workspace import Workspace

logger = logging.getLogger(__name__)

MAX_ACP_ATTEMPTS = 2
"""How often a run is tried in warm processes; one that ends each of them runs alone then."""
NO_SIGN_IN_EXIT_CODE = 41
"""The CLI's exit code when it found none; a refused one ends otherwise."""


class GeminiCliProvider:
    """The provider `gemini`."""

    name = "gemini"
    evidence: Evidence = "ledger"
    fetches = True
    supports_thoughts = False

    def __init__(
        self,
        settings: Settings,
        workspace: Workspace,
        environ: Mapping[str, str],
        limiter: RunLimiter,
        breakers: QuotaBreakers,
        *,
        warm: bool | GroundingOptions = False,
    ) -> None:
        """With `warm`, processes can be kept ready: for research, or for such searches."""
        self.configured_model = settings.model
        self._settings = settings
        self._workspace = workspace
        self._environ = environ
        self._secrets = settings.secrets
        self._search_profile = Profile("search", (SEARCH_TOOL, FETCH_TOOL), settings.model)
        self._correction_profile = Profile("correction", (), settings.correction_model)
        self._limiter = limiter
        self._breakers = breakers
        profile = (
            _grounded_profile(warm) if isinstance(warm, GroundingOptions) else self._search_profile
        )
        self._pool = AcpPool(settings, workspace, environ, profile, limiter) if warm else None
        self._model_flag_only: set[Path] = set()
        """Binaries that know no other flag than `--model`."""
        self._unusable_sign_ins: set[SignIn] = set()
        """Ways to sign in that turned out to be none: a .env without a key in it."""

    async def ask(self, prompt: str, progress: ProgressCallback, file: Path | None = None) -> Reply:
        """Answer the prompt, with web search at hand.

        With `file` the run is a correction: no tools, the correction model, and the folder
        of that file to run in, so that `@name` in the prompt inlines it.
        """
        if file:
            breaker = self._breaker_key(self._correction_profile)
            async with self._limiter.acquire(progress):
                with self._breakers.guard(breaker):
                    result = await self._run_signed_in(
                        self._correction_profile, prompt, progress, file
                    )
                return result.reply
        return (await self._run_warm_or_cold(self._search_profile, prompt, progress)).reply

    @property
    def has_ready_process(self) -> bool:
        """Whether a search would find a process that is ready."""
        return self._pool is not None and self._pool.is_ready

    async def run_pool(self) -> None:
        """Keep processes ready for searches, until cancelled."""
        if self._pool:
            await self._pool.run()

    async def grounded_search(
        self, query: str, options: GroundingOptions, progress: ProgressCallback
    ) -> Reply:
        """Let the CLI make one search, which is a request of its own with no other tool.

        What the model makes of it does not matter; nor if it fails in that, as long as the CLI
        still writes down what it saw.
        """
        if options.model != "flash" and is_model_alias(options.model):
            raise InvalidInput(
                f"`model`: the gemini CLI cannot search with the alias {options.model!r}. Use a "
                "full name such as gemini-2.5-flash; the provider `api` accepts the alias."
            )
        prompt = prompts.render(
            "grounded-prompt", query=query, mark=secrets.token_hex(4), tool=SEARCH_TOOL
        )
        result = await self._run_warm_or_cold(
            _grounded_profile(options), prompt, progress, accept_failed_with_sources=True
        )
        reply = result.reply
        searcher = result.events.other_model(reply.model)
        return replace(reply, model=searcher if options.model == "flash" else options.model)

    async def _run_warm_or_cold(
        self,
        profile: Profile,
        prompt: str,
        progress: ProgressCallback,
        *,
        accept_failed_with_sources: bool = False,
    ) -> RunResult:
        """A run in a warm process where one is ready, else in one of its own.

        One that a warm process took down with it is made again: the caller sees nothing of that.
        """
        pool = self._pool if self._pool and self._pool.profile == profile else None
        breaker = self._breaker_key(profile)
        for attempt in range(MAX_ACP_ATTEMPTS + 1):
            find_slot = pool.find_slot if pool and attempt < MAX_ACP_ATTEMPTS else None
            async with self._limiter.acquire(progress, find_slot) as slot:
                if slot is None:
                    with self._breakers.guard(breaker):
                        return await self._run_signed_in(
                            profile,
                            prompt,
                            progress,
                            accept_failed_with_sources=accept_failed_with_sources,
                        )
                with suppress(AgentGone), self._breakers.guard(breaker):
                    result = await slot.run(prompt, progress)
                    if error := self._failure(
                        result, accept_failed_with_sources=accept_failed_with_sources
                    ):
                        raise error
                    return result
            logger.info("A warm gemini was lost: its search is made again")
        raise AssertionError("the last try is a run of its own")

    async def _run_signed_in(
        self,
        profile: Profile,
        prompt: str,
        progress: ProgressCallback,
        file: Path | None = None,
        *,
        accept_failed_with_sources: bool = False,
    ) -> RunResult:
        """A run that did not fail; with `searched`, one that found something before it did."""
        binary = find_gemini(self._settings.cli_path, self._environ)
        progress("starting gemini")
        # Looked up for every call: whoever is told to sign in need not start us again.
        sign_ins = available_sign_ins(self._environ)
        for sign_in in [way for way in sign_ins if way not in self._unusable_sign_ins] or sign_ins:
            with self._workspace.os_errors_as_config_error():
                home = prepare_home(self._workspace, profile, sign_in, self._settings.limits)
            cwd = file.parent if file else home.working_folder
            result = await self._run(binary, profile, home, cwd, prompt, progress)
            error = self._failure(result, accept_failed_with_sources=accept_failed_with_sources)
            if error is None:
                if self._pool:
                    self._pool.mark_working(sign_in)
                return result
            if result.completed.exit_code != NO_SIGN_IN_EXIT_CODE or sign_in == sign_ins[-1]:
                raise error
            self._unusable_sign_ins.add(sign_in)
        raise AssertionError("the last way to sign in returns or raises")

    def _breaker_key(self, profile: Profile) -> str:
        """The name of the quota that a run uses up; whoever has none is told before it waits."""
        sign_in = next(iter(available_sign_ins(self._environ)), None)
        keys = [self._environ.get(key) for key in ("GEMINI_API_KEY", "GOOGLE_API_KEY")]
        name = breaker_key("gemini", sign_in, *keys, profile.model)
        self._breakers.raise_if_open(name)
        return name

    def _failure(
        self, result: RunResult, *, accept_failed_with_sources: bool
    ) -> GeminiMcpError | None:
        return (
            None
            if accept_failed_with_sources and result.has_sources
            else result.failure(self._secrets)
        )

    async def _run(
        self,
        binary: GeminiBinary,
        profile: Profile,
        home: Home,
        cwd: Path,
        prompt: str,
        progress: ProgressCallback,
    ) -> RunResult:
        """Run the binary; once more with fewer flags if it does not know them."""
        model = ["--model", profile.model] if profile.model else []
        if binary.path not in self._model_flag_only:
            flags = ["--output-format", "stream-json", *model]
            result = await self._run_once(binary, flags, home, cwd, prompt, progress)
            if binary.is_official or not is_usage_error(result.completed, result.events):
                return result
            self._model_flag_only.add(binary.path)
            logger.info("%s does not know our flags: --model alone from now on", binary.path)
        return await self._run_once(binary, model, home, cwd, prompt, progress)

    async def _run_once(
        self,
        binary: GeminiBinary,
        flags: list[str],
        home: Home,
        cwd: Path,
        prompt: str,
        progress: ProgressCallback,
    ) -> RunResult:
        argv = [*binary.argv, *flags]
        events = EventLog(progress, self._settings.limits, self._secrets)
        record = telemetry = None
        with home.temporary_folder() as temp:
            env = home.environment(self._environ, temp, self._settings.pass_env)
            env["PATH"] = child_path(binary, self._environ)
            try:
                completed = await run(
                    argv,
                    stdin=prompt.encode("utf-8", "replace"),
                    env=env,
                    cwd=cwd,
                    on_line=events.feed_line,
                    idle_timeout=lambda: events.idle_limit,
                    # The caller's own deadline comes before this one.
                    timeout=max(self._settings.timeout, self._settings.round_timeout),
                    scratch=self._workspace.root(),
                )
                if session := events.session_id:
                    record = read_and_delete_record(home.path, session, official=binary.is_official)
                    recorded = record.searches if record else ()
                    # In a thread: after fifty turns it has many megabytes.
                    telemetry = await anyio.to_thread.run_sync(
                        read_telemetry, home.telemetry_file(temp), session, recorded
                    )
            except OSError as error:
                message = f"{argv[0]} cannot be run: {error.strerror}."
                if error.errno in (errno.ENOENT, errno.EACCES, errno.ENOEXEC):
                    raise CliNotFound(message) from None
                raise ExecutionFailed(message) from None
            finally:
                if events.session_id and record is None:  # it is not left, however that ended
                    read_and_delete_record(home.path, events.session_id)
        return RunResult(completed, events, record, telemetry, binary.is_official)


def _grounded_profile(options: GroundingOptions) -> Profile:
    name = f"grounded-{zlib.crc32(options.model.encode()):08x}-{options.thinking}"
    return Profile(name, (SEARCH_TOOL,), options.model, options.thinking)
