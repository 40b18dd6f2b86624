"""Ask the official `gemini` CLI: one process per run, prompt by stdin, events by stdout."""

import errno
import logging
import os
import secrets
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gemini_cli_mcp import prompts
from gemini_cli_mcp.config import Config
from gemini_cli_mcp.errors import CliNotFound, ExecutionFailed, InvalidInput
from gemini_cli_mcp.models import Evidence, Grounding, Progress, Reply
from gemini_cli_mcp.process.run import Completed, run
from gemini_cli_mcp.providers import gemini_binary, gemini_home, gemini_record
from gemini_cli_mcp.providers.gemini_binary import Binary
from gemini_cli_mcp.providers.gemini_failures import failure, is_usage_error
from gemini_cli_mcp.providers.gemini_home import Home, Profile, SignIn
from gemini_cli_mcp.providers.gemini_record import Record
from gemini_cli_mcp.providers.gemini_stream import FETCH_TOOL, SEARCH_TOOL, Transcript
from gemini_cli_mcp.workspace import Workspace

logger = logging.getLogger(__name__)

IDLE = 120.0
"""Seconds without a word after which a run is given up: the CLI itself waits for ever."""
IDLE_IN_SEARCH = 60.0
"""The same while a search is under way, which the CLI may be repeating without end."""

NO_SIGN_IN = 41
"""The CLI's exit code when it found none; a refused one ends otherwise."""


@dataclass(frozen=True)
class _Finished:
    """A run of the CLI that is over, well or not."""

    completed: Completed
    transcript: Transcript
    record: Record | None


class GeminiCli:
    """The provider `gemini`."""

    name = "gemini"
    evidence: Evidence = "ledger"
    fetches = True
    thoughts = False

    def __init__(self, config: Config, workspace: Workspace, environ: Mapping[str, str]) -> None:
        self.asked_model = config.model
        self._config = config
        self._workspace = workspace
        self._environ = environ
        self._secrets = gemini_home.secrets(environ)
        self._search = Profile("search", (SEARCH_TOOL, FETCH_TOOL), config.model)
        self._correction = Profile("correction", (), config.correction_model)
        self._plain: set[Path] = set()
        """Binaries that know no other flag than `--model`."""
        self._empty: set[SignIn] = set()
        """Ways to sign in that turned out to be none: a .env without a key in it."""

    async def ask(self, prompt: str, progress: Progress, file: Path | None = None) -> Reply:
        """Answer the prompt, with web search at hand.

        With `file` the run is a correction: no tools, the correction model, and the folder
        of that file to run in, so that `@name` in the prompt inlines it.
        """
        profile = self._correction if file else self._search
        return _reply(await self._run_signed_in(profile, prompt, progress, file))

    async def ground(self, query: str, how: Grounding, progress: Progress) -> Reply:
        """Let the CLI make one search, which is a request of its own with no other tool.

        What the model makes of it does not matter, nor if it fails in that.
        """
        if how.model != "flash" and gemini_home.renamed(how.model):
            raise InvalidInput(
                f"`model`: the gemini CLI does not search with {how.model!r}. Give it a full name "
                "such as gemini-2.5-flash; `api` knows this one."
            )
        name = f"grounded-{zlib.crc32(how.model.encode()):08x}-{how.thinking}"
        profile = Profile(name, (SEARCH_TOOL,), how.model, how.thinking)
        prompt = prompts.fill(
            "grounded-prompt", query=query, mark=secrets.token_hex(4), tool=SEARCH_TOOL
        )
        finished = await self._run_signed_in(profile, prompt, progress, searched=True)
        reply = _reply(finished)
        searcher = finished.transcript.other_model(reply.model)
        return replace(reply, model=searcher if how.model == "flash" else how.model)

    async def _run_signed_in(
        self,
        profile: Profile,
        prompt: str,
        progress: Progress,
        file: Path | None = None,
        *,
        searched: bool = False,
    ) -> _Finished:
        """A run that did not fail; with `searched`, one that found something before it did."""
        binary = gemini_binary.find(self._config.cli_path, self._environ)
        progress("starting gemini")
        # Looked up for every call: whoever is told to sign in need not start us again.
        ways = gemini_home.sign_ins(self._environ)
        for way in [way for way in ways if way not in self._empty] or ways:
            with self._workspace.usable():
                home = gemini_home.prepare(self._workspace, profile, way)
            cwd = file.parent if file else home.work
            finished = await self._run(binary, profile, home, cwd, prompt, progress)
            error = failure(finished.completed, finished.transcript, self._secrets)
            found = finished.record and any(search.sources for search in finished.record.searches)
            if error is None or (searched and found):
                return finished
            if finished.completed.exit_code != NO_SIGN_IN or way == ways[-1]:
                raise error
            self._empty.add(way)
        raise AssertionError("the last way to sign in returns or raises")

    async def _run(
        self,
        binary: Binary,
        profile: Profile,
        home: Home,
        cwd: Path,
        prompt: str,
        progress: Progress,
    ) -> _Finished:
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
    ) -> _Finished:
        argv = [str(binary.path), *flags]
        transcript = Transcript(progress)
        record = None
        with home.temporary_folder() as temp:
            env = home.environment(self._environ, temp)
            # `#!/usr/bin/env node`: it mostly lies beside gemini, but not on a desktop app's PATH.
            path = gemini_binary.search_path(self._environ)
            env["PATH"] = f"{Path(argv[0]).parent}{os.pathsep}{path}"
            try:
                completed = await run(
                    argv,
                    stdin=prompt.encode("utf-8", "replace"),
                    env=env,
                    cwd=cwd,
                    on_line=transcript.feed,
                    idle=lambda: IDLE_IN_SEARCH if transcript.is_searching else IDLE,
                    # The caller's own deadline comes before this one.
                    timeout=max(self._config.timeout, self._config.round_timeout),
                    scratch=self._workspace.root(),
                )
            except OSError as error:
                message = f"{argv[0]} cannot be run: {error.strerror}."
                if error.errno in (errno.ENOENT, errno.EACCES, errno.ENOEXEC):
                    raise CliNotFound(message) from None
                raise ExecutionFailed(message) from None
            finally:
                if transcript.session_id:
                    record = gemini_record.take(
                        home.path, transcript.session_id, official=binary.official
                    )
        return _Finished(completed, transcript, record)


def _reply(finished: _Finished) -> Reply:
    transcript, record = finished.transcript, finished.record
    if record:
        return Reply(
            transcript.text,
            record.model or transcript.busiest_model,
            "ledger",
            record.searches,
            record.fetches,
            transcript.usage,
        )
    if transcript.is_stream:
        return Reply(
            transcript.text,
            transcript.busiest_model,
            "events",
            transcript.searches,
            usage=transcript.usage,
        )
    return Reply(transcript.text, None, "none")
