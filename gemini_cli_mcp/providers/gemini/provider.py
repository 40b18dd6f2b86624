"""Run prompts with the official `gemini` CLI, in a shared ACP process or a dedicated one.

A dedicated process serves one run: it reads the prompt from stdin and writes events to stdout.
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
from gemini_cli_mcp.providers.gemini.acp_client import AgentUnavailable
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
from gemini_cli_mcp.providers.gemini.telemetry_reader import read_telemetry
from gemini_cli_mcp.providers.quota_breaker import QuotaBreakers, breaker_key
from gemini_cli_mcp.providers.run_limiter import RunLimiter
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.types import ProgressCallback
from gemini_cli_mcp.workspace import Workspace

logger = logging.getLogger(__name__)

MAX_ACP_ATTEMPTS = 2
"""Attempts in ACP processes before a run falls back to a dedicated process."""
NO_SIGN_IN_EXIT_CODE = 41
"""The CLI's exit code if it finds no sign-in; a rejected sign-in exits differently."""


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
        warm: bool | GroundingOptions = False,
    ) -> None:
        """With `warm`, keep ACP processes for research, or for searches with the given options."""
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
        self._model_flag_only_binaries: set[Path] = set()
        """Binaries that support no flag except `--model`."""
        self._missing_sign_ins: set[SignIn] = set()
        """Sign-ins that turned out not to exist, such as a .env file without a key."""

    async def ask(self, prompt: str, progress: ProgressCallback, file: Path | None = None) -> Reply:
        """Answer the prompt with web search available.

        With `file` the run is a correction: it has no tools, uses the correction model, and runs
        in the folder of that file, so that `@name` in the prompt inlines it.
        """
        if file:
            quota_key = self._require_quota(self._correction_profile)
            async with self._limiter.acquire(progress):
                with self._breakers.guard(quota_key):
                    result = await self._run_dedicated(
                        self._correction_profile, prompt, progress, file
                    )
                return result.reply
        return (await self._run_shared_or_dedicated(self._search_profile, prompt, progress)).reply

    @property
    def has_ready_process(self) -> bool:
        """Whether an ACP process is ready for a search."""
        return self._pool is not None and self._pool.is_ready

    async def run_pool(self) -> None:
        """Keep ACP processes ready until cancelled."""
        if self._pool:
            await self._pool.run()

    async def grounded_search(
        self, query: str, options: GroundingOptions, progress: ProgressCallback
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
        result = await self._run_shared_or_dedicated(
            _grounded_profile(options), prompt, progress, accept_failed_with_sources=True
        )
        reply = result.reply
        search_model = result.events.helper_model(reply.model)
        return replace(reply, model=search_model if options.model == "flash" else options.model)

    async def _run_shared_or_dedicated(
        self,
        profile: Profile,
        prompt: str,
        progress: ProgressCallback,
        *,
        accept_failed_with_sources: bool = False,
    ) -> RunResult:
        """Run in an ACP process if the limiter assigns one, otherwise in a dedicated process.

        A run that fails because its ACP process exits is repeated transparently.
        """
        pool = self._pool if self._pool and self._pool.profile == profile else None
        quota_key = self._require_quota(profile)
        for attempt in range(MAX_ACP_ATTEMPTS + 1):
            find_slot = pool.find_slot if pool and attempt < MAX_ACP_ATTEMPTS else None
            async with self._limiter.acquire(progress, find_slot) as slot:
                if slot is None:
                    with self._breakers.guard(quota_key):
                        return await self._run_dedicated(
                            profile,
                            prompt,
                            progress,
                            accept_failed_with_sources=accept_failed_with_sources,
                        )
                with suppress(AgentUnavailable), self._breakers.guard(quota_key):
                    result = await slot.run(prompt, progress)
                    if error := self._failure(
                        result, accept_failed_with_sources=accept_failed_with_sources
                    ):
                        raise error
                    return result
            logger.info("ACP process lost: repeating its run")
        raise AssertionError("the last attempt is a dedicated run")

    async def _run_dedicated(
        self,
        profile: Profile,
        prompt: str,
        progress: ProgressCallback,
        file: Path | None = None,
        *,
        accept_failed_with_sources: bool = False,
    ) -> RunResult:
        """Run in a new process, trying each sign-in in turn.

        With `accept_failed_with_sources`, a failed run that found sources counts as a success.
        """
        binary = find_gemini(self._settings.cli_path, self._environ)
        progress("starting gemini")
        # Look up for every call, so that the user can sign in without restarting the server.
        sign_ins = available_sign_ins(self._environ)
        for sign_in in [
            item for item in sign_ins if item not in self._missing_sign_ins
        ] or sign_ins:
            with self._workspace.os_errors_as_config_error():
                home = prepare_home(self._workspace, profile, sign_in, self._settings.limits)
            cwd = file.parent if file else home.working_folder
            result = await self._run_binary(binary, profile, home, cwd, prompt, progress)
            error = self._failure(result, accept_failed_with_sources=accept_failed_with_sources)
            if error is None:
                if self._pool:
                    self._pool.mark_working(sign_in)
                return result
            if result.completed.exit_code != NO_SIGN_IN_EXIT_CODE or sign_in == sign_ins[-1]:
                raise error
            self._missing_sign_ins.add(sign_in)
        raise AssertionError("the last sign-in returns or raises")

    def _require_quota(self, profile: Profile) -> str:
        """Return the key of the run's quota; raise before queueing if that quota is exhausted."""
        sign_in = next(iter(available_sign_ins(self._environ)), None)
        api_keys = [self._environ.get(name) for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY")]
        quota_key = breaker_key("gemini", sign_in, *api_keys, profile.model)
        self._breakers.raise_if_open(quota_key)
        return quota_key

    def _failure(
        self, result: RunResult, *, accept_failed_with_sources: bool
    ) -> GeminiMcpError | None:
        return (
            None
            if accept_failed_with_sources and result.has_sources
            else result.failure(self._secrets)
        )

    async def _run_binary(
        self,
        binary: GeminiBinary,
        profile: Profile,
        home: Home,
        cwd: Path,
        prompt: str,
        progress: ProgressCallback,
    ) -> RunResult:
        """Run the binary; retry with `--model` alone if it rejects our other flags."""
        model_flags = ["--model", profile.model] if profile.model else []
        if binary.path not in self._model_flag_only_binaries:
            flags = ["--output-format", "stream-json", *model_flags]
            result = await self._run_once(binary, flags, home, cwd, prompt, progress)
            if binary.is_official or not is_usage_error(result.completed, result.events):
                return result
            self._model_flag_only_binaries.add(binary.path)
            logger.info("%s does not support our flags; using only --model", binary.path)
        return await self._run_once(binary, model_flags, home, cwd, prompt, progress)

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
        with home.temporary_folder() as temp_folder:
            env = home.environment(self._environ, temp_folder, self._settings.pass_env)
            env["PATH"] = child_path(binary, self._environ)
            try:
                completed = await run(
                    argv,
                    stdin=prompt.encode("utf-8", "replace"),
                    env=env,
                    cwd=cwd,
                    on_line=events.feed_line,
                    idle_timeout=lambda: events.idle_limit,
                    # An upper bound only: the caller's own deadline expires first.
                    timeout=max(self._settings.timeout, self._settings.round_timeout),
                    scratch=self._workspace.root(),
                )
                if session_id := events.session_id:
                    record = read_and_delete_record(
                        home.path, session_id, official=binary.is_official
                    )
                    recorded = record.searches if record else ()
                    # In a thread: after fifty turns the file has many megabytes.
                    telemetry = await anyio.to_thread.run_sync(
                        read_telemetry, home.telemetry_file(temp_folder), session_id, recorded
                    )
            except OSError as error:
                message = f"{argv[0]} cannot be run: {error.strerror}."
                if error.errno in (errno.ENOENT, errno.EACCES, errno.ENOEXEC):
                    raise CliNotFound(message) from None
                raise ExecutionFailed(message) from None
            finally:
                if events.session_id and record is None:  # delete it even if the run failed
                    read_and_delete_record(home.path, events.session_id)
        return RunResult(completed, events, record, telemetry, binary.is_official)


def _grounded_profile(options: GroundingOptions) -> Profile:
    name = f"grounded-{zlib.crc32(options.model.encode()):08x}-{options.thinking}"
    return Profile(name, (SEARCH_TOOL,), options.model, options.thinking)
