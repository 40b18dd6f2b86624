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
from gemini_cli_mcp.providers.base import Grounding, Reply
from gemini_cli_mcp.providers.gemini.acp_client import Lost
from gemini_cli_mcp.providers.gemini.acp_pool import Warm
from gemini_cli_mcp.providers.gemini.binary import Binary, find_gemini, path_for
from gemini_cli_mcp.providers.gemini.events import FETCH_TOOL, SEARCH_TOOL, Transcript
from gemini_cli_mcp.providers.gemini.failures import is_usage_error
from gemini_cli_mcp.providers.gemini.home import (
    Home,
    Profile,
    SignIn,
    prepare_home,
    renamed,
    sign_ins,
)
from gemini_cli_mcp.providers.gemini.run_result import Finished
from gemini_cli_mcp.providers.gemini.session_record import read_and_delete_record
from gemini_cli_mcp.providers.gemini.telemetry import read_telemetry
from gemini_cli_mcp.providers.quota_breaker import Quotas, name_of
from gemini_cli_mcp.providers.run_limiter import Places
from gemini_cli_mcp.settings.env import Config
from gemini_cli_mcp.types import Evidence, Progress
from gemini_cli_mcp.workspace import Workspace

logger = logging.getLogger(__name__)

WARM_TRIES = 2
"""How often a run is tried in warm processes; one that ends each of them runs alone then."""
NO_SIGN_IN = 41
"""The CLI's exit code when it found none; a refused one ends otherwise."""


class GeminiCli:
    """The provider `gemini`."""

    name = "gemini"
    evidence: Evidence = "ledger"
    fetches = True
    thoughts = False

    def __init__(
        self,
        config: Config,
        workspace: Workspace,
        environ: Mapping[str, str],
        places: Places,
        quotas: Quotas,
        *,
        warm: bool | Grounding = False,
    ) -> None:
        """With `warm`, processes can be kept ready: for research, or for such searches."""
        self.asked_model = config.model
        self._config = config
        self._workspace = workspace
        self._environ = environ
        self._secrets = config.secrets
        self._search = Profile("search", (SEARCH_TOOL, FETCH_TOOL), config.model)
        self._correction = Profile("correction", (), config.correction_model)
        self._places = places
        self._quotas = quotas
        kept = _grounded(warm) if isinstance(warm, Grounding) else self._search
        self._warm = Warm(config, workspace, environ, kept, places) if warm else None
        self._plain: set[Path] = set()
        """Binaries that know no other flag than `--model`."""
        self._empty: set[SignIn] = set()
        """Ways to sign in that turned out to be none: a .env without a key in it."""

    async def ask(self, prompt: str, progress: Progress, file: Path | None = None) -> Reply:
        """Answer the prompt, with web search at hand.

        With `file` the run is a correction: no tools, the correction model, and the folder
        of that file to run in, so that `@name` in the prompt inlines it.
        """
        if file:
            quota = self._quota(self._correction)
            async with self._places.one(progress):
                with self._quotas.asking(quota):
                    done = await self._run_signed_in(self._correction, prompt, progress, file)
                return done.reply
        return (await self._run_somewhere(self._search, prompt, progress)).reply

    @property
    def is_warm(self) -> bool:
        """Whether a search would find a process that is ready."""
        return self._warm is not None and self._warm.is_ready

    async def stay_warm(self) -> None:
        """Keep processes ready for searches, until cancelled."""
        if self._warm:
            await self._warm.stay()

    async def ground(self, query: str, how: Grounding, progress: Progress) -> Reply:
        """Let the CLI make one search, which is a request of its own with no other tool.

        What the model makes of it does not matter; nor if it fails in that, as long as the CLI
        still writes down what it saw.
        """
        if how.model != "flash" and renamed(how.model):
            raise InvalidInput(
                f"`model`: the gemini CLI does not search with {how.model!r}. Give it a full name "
                "such as gemini-2.5-flash; `api` knows this one."
            )
        prompt = prompts.fill(
            "grounded-prompt", query=query, mark=secrets.token_hex(4), tool=SEARCH_TOOL
        )
        finished = await self._run_somewhere(_grounded(how), prompt, progress, searched=True)
        reply = finished.reply
        searcher = finished.transcript.other_model(reply.model)
        return replace(reply, model=searcher if how.model == "flash" else how.model)

    async def _run_somewhere(
        self, profile: Profile, prompt: str, progress: Progress, *, searched: bool = False
    ) -> Finished:
        """A run in a warm process where one is ready, else in one of its own.

        One that a warm process took down with it is made again: the caller sees nothing of that.
        """
        warm = self._warm if self._warm and self._warm.profile == profile else None
        quota = self._quota(profile)
        for tries in range(WARM_TRIES + 1):
            find = warm.find if warm and tries < WARM_TRIES else None
            async with self._places.one(progress, find) as seat:
                if seat is None:
                    with self._quotas.asking(quota):
                        return await self._run_signed_in(
                            profile, prompt, progress, searched=searched
                        )
                with suppress(Lost), self._quotas.asking(quota):
                    finished = await seat.run(prompt, progress)
                    if error := self._failure(finished, searched=searched):
                        raise error
                    return finished
            logger.info("A warm gemini was lost: its search is made again")
        raise AssertionError("the last try is a run of its own")

    async def _run_signed_in(
        self,
        profile: Profile,
        prompt: str,
        progress: Progress,
        file: Path | None = None,
        *,
        searched: bool = False,
    ) -> Finished:
        """A run that did not fail; with `searched`, one that found something before it did."""
        binary = find_gemini(self._config.cli_path, self._environ)
        progress("starting gemini")
        # Looked up for every call: whoever is told to sign in need not start us again.
        ways = sign_ins(self._environ)
        for way in [way for way in ways if way not in self._empty] or ways:
            with self._workspace.usable():
                home = prepare_home(self._workspace, profile, way, self._config.limits)
            cwd = file.parent if file else home.work
            finished = await self._run(binary, profile, home, cwd, prompt, progress)
            error = self._failure(finished, searched=searched)
            if error is None:
                if self._warm:
                    self._warm.prove(way)
                return finished
            if finished.completed.exit_code != NO_SIGN_IN or way == ways[-1]:
                raise error
            self._empty.add(way)
        raise AssertionError("the last way to sign in returns or raises")

    def _quota(self, profile: Profile) -> str:
        """The name of the quota that a run uses up; whoever has none is told before it waits."""
        way = next(iter(sign_ins(self._environ)), None)
        keys = [self._environ.get(name) for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY")]
        name = name_of("gemini", way, *keys, profile.model)
        self._quotas.check(name)
        return name

    def _failure(self, finished: Finished, *, searched: bool) -> GeminiMcpError | None:
        return None if searched and finished.found_something else finished.failure(self._secrets)

    async def _run(
        self,
        binary: Binary,
        profile: Profile,
        home: Home,
        cwd: Path,
        prompt: str,
        progress: Progress,
    ) -> Finished:
        """Run the binary; once more with fewer flags if it does not know them."""
        model = ["--model", profile.model] if profile.model else []
        if binary.path not in self._plain:
            flags = ["--output-format", "stream-json", *model]
            finished = await self._start(binary, flags, home, cwd, prompt, progress)
            if binary.official or not is_usage_error(finished.completed, finished.transcript):
                return finished
            self._plain.add(binary.path)
            logger.info("%s does not know our flags: --model alone from now on", binary.path)
        return await self._start(binary, model, home, cwd, prompt, progress)

    async def _start(
        self,
        binary: Binary,
        flags: list[str],
        home: Home,
        cwd: Path,
        prompt: str,
        progress: Progress,
    ) -> Finished:
        argv = [*binary.argv, *flags]
        transcript = Transcript(progress, self._config.limits, self._secrets)
        record = telemetry = None
        with home.temporary_folder() as temp:
            env = home.environment(self._environ, temp, self._config.pass_env)
            env["PATH"] = path_for(binary, self._environ)
            try:
                completed = await run(
                    argv,
                    stdin=prompt.encode("utf-8", "replace"),
                    env=env,
                    cwd=cwd,
                    on_line=transcript.feed,
                    idle=lambda: transcript.patience,
                    # The caller's own deadline comes before this one.
                    timeout=max(self._config.timeout, self._config.round_timeout),
                    scratch=self._workspace.root(),
                )
                if session := transcript.session_id:
                    record = read_and_delete_record(home.path, session, official=binary.official)
                    known = record.searches if record else ()
                    # In a thread: after fifty turns it has many megabytes.
                    telemetry = await anyio.to_thread.run_sync(
                        read_telemetry, home.telemetry_file(temp), session, known
                    )
            except OSError as error:
                message = f"{argv[0]} cannot be run: {error.strerror}."
                if error.errno in (errno.ENOENT, errno.EACCES, errno.ENOEXEC):
                    raise CliNotFound(message) from None
                raise ExecutionFailed(message) from None
            finally:
                if transcript.session_id and record is None:  # it is not left, however that ended
                    read_and_delete_record(home.path, transcript.session_id)
        return Finished(completed, transcript, record, telemetry, binary.official)


def _grounded(how: Grounding) -> Profile:
    name = f"grounded-{zlib.crc32(how.model.encode()):08x}-{how.thinking}"
    return Profile(name, (SEARCH_TOOL,), how.model, how.thinking)
