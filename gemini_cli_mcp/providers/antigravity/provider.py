"""Run the official `agy` CLI (Antigravity), only if the user configured it.

`agy` supports neither a private home nor a tool list: it runs with the user's own settings, in an
empty folder, and can use every tool that those settings allow without asking. Facts as of 1.2.16.
The real CLI has not been run for this project; scripts/stub-agy replays its recorded formats.
"""

import json
import logging
import os
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import cast

from gemini_cli_mcp import prompts
from gemini_cli_mcp.call_context import CallContext, FindingsReporter
from gemini_cli_mcp.errors import (
    CliNotFound,
    ExecutionFailed,
    InvalidInput,
)
from gemini_cli_mcp.json_values import JsonValue
from gemini_cli_mcp.platforms.folders import home_folder
from gemini_cli_mcp.platforms.programs import max_argument_bytes
from gemini_cli_mcp.process.run import Completed, read_output, run
from gemini_cli_mcp.providers.antigravity.binary import INSTALL_HINT, AgyBinary, find_agy
from gemini_cli_mcp.providers.antigravity.events import SEARCH_TOOL, AgyEventLog
from gemini_cli_mcp.providers.antigravity.failures import classify_failure
from gemini_cli_mcp.providers.base import GroundingOptions, Reply
from gemini_cli_mcp.providers.child_environment import allowed_variables
from gemini_cli_mcp.providers.quota_breaker import QuotaBreakers, breaker_key
from gemini_cli_mcp.providers.run_limiter import RunLimiter
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.workspace import Workspace

logger = logging.getLogger(__name__)

MIN_VERSION = (1, 1, 15)
"""Older versions lose output without a terminal and corrupt non-ASCII text."""
GEMINI_KEY_VARIABLES = ("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_APPLICATION_CREDENTIALS")
"""Credentials of the gemini CLI, which agy should not see."""
TERMS_NOTICE = (
    "The provider antigravity uses your own Antigravity login. Google's terms are ambiguous about "
    "automated use by other programs, and accounts have been suspended for related uses. Prefer an "
    "API key."
)

_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")


class AntigravityProvider:
    """The provider `antigravity`."""

    name = "antigravity"
    configured_model: str | None = None
    supports_thoughts = False

    def __init__(
        self,
        settings: Settings,
        workspace: Workspace,
        environ: Mapping[str, str],
        limiter: RunLimiter,
        breakers: QuotaBreakers,
    ) -> None:
        self._limiter = limiter
        self._breakers = breakers
        self._settings = settings
        self._workspace = workspace
        self._environ = environ
        self._secrets = settings.secrets
        self._checked_binaries: set[Path] = set()
        """Binaries whose version is known to be supported."""

    async def ask(self, prompt: str, context: CallContext, file: Path | None = None) -> Reply:
        """Answer with agy's own web search; a correction gets its file inlined in the prompt."""
        if file:
            return await self._ask(prompts.inline_file(prompt, file), context, [])
        reply = await self._ask(prompt, context, [])
        if not any(search.error is None for search in reply.searches):
            raise ExecutionFailed("agy answered without searching.")
        return reply

    async def grounded_search(
        self, query: str, options: GroundingOptions, context: CallContext
    ) -> Reply:
        """Have agy run one search, whose output is the answer."""
        if options.thinking == "off":
            raise InvalidInput(
                "`thinking`: agy cannot turn thinking off. Use the provider `gemini` or `api`."
            )
        flags = ["--effort", options.thinking]
        if options.model != "flash":
            flags += ["--model", options.model]
        mark = os.urandom(4).hex()
        prompt = prompts.render("grounded-prompt", query=query, mark=mark, tool=SEARCH_TOOL)
        return await self._ask(prompt, context, flags, accept_failed_with_sources=True)

    async def _ask(
        self,
        prompt: str,
        context: CallContext,
        flags: list[str],
        *,
        accept_failed_with_sources: bool = False,
    ) -> Reply:
        """Run agy and return its reply, or raise if it failed.

        With `accept_failed_with_sources`, a run that found sources before it failed is accepted.
        """
        binary = find_agy(self._settings.agy_path, self._environ)
        argv = [*binary.argv, "--output-format", "stream-json", "--disable-slash-commands"]
        argv += flags or ["--effort", "low"]
        stdin = b""
        if len(prompt.encode()) <= max_argument_bytes():
            argv += ["--print-timeout", f"{self._timeout:.0f}s", f"--print={prompt}"]
        else:
            argv += ["--input-format", "stream-json"]
            message = {"event": "user", "message": {"content": prompt}}
            stdin = json.dumps(message).encode() + b"\n"
        events = AgyEventLog(context.progress)
        key = breaker_key("agy", *flags)
        self._breakers.raise_if_open(key)
        async with self._limiter.acquire(context):
            with self._breakers.guard(key):
                await self._check_version(binary)
                context.progress("starting agy")
                completed = await self._run(argv, stdin, events)
                reply = events.reply()
                FindingsReporter(context).report_rest(reply.searches, reply.fetches, reply.usage)
                has_sources = any(search.sources for search in reply.searches)
                if (error := classify_failure(completed, events, self._secrets)) and not (
                    accept_failed_with_sources and has_sources
                ):
                    raise error
        return reply

    async def _run(self, argv: list[str], stdin: bytes, events: AgyEventLog) -> Completed:
        with self._workspace.os_errors_as_config_error():
            working_folder = self._workspace.folder("antigravity", "work")
        limits = self._settings.limits
        try:
            return await run(
                argv,
                stdin=stdin,
                env=self._environment(),
                cwd=working_folder,
                on_line=events.feed_line,
                idle_timeout=lambda: (
                    limits.agy_idle_timeout if events.has_started else limits.agy_startup_timeout
                ),
                timeout=self._timeout,
                scratch=self._workspace.root(),
                # Do not wait for the pipes to close: servers started by agy may hold them forever.
                is_finished=lambda: events.result is not None,
            )
        except OSError as error:
            raise CliNotFound(
                f"{argv[0]} cannot be run: {error.strerror}.", hint=INSTALL_HINT
            ) from None

    @property
    def _timeout(self) -> float:
        return max(self._settings.timeout, self._settings.round_timeout)

    async def _check_version(self, binary: AgyBinary) -> None:
        """Check each binary once; log the terms notice with the first."""
        if binary.path in self._checked_binaries:
            return
        with self._workspace.os_errors_as_config_error():
            working_folder = self._workspace.folder("antigravity", "work")
        try:
            output = await read_output(
                [*binary.argv, "--version"], env=self._environment(), cwd=working_folder
            )
        except OSError as error:
            raise CliNotFound(
                f"{binary.path} cannot be run: {error.strerror}.", hint=INSTALL_HINT
            ) from None
        version = _VERSION.search(f"{output.stdout}\n{output.stderr}")
        if version is None:
            raise CliNotFound(f"{binary.path} does not report its version.", hint=INSTALL_HINT)
        if tuple(map(int, version.groups())) < MIN_VERSION:
            min_version = ".".join(map(str, MIN_VERSION))
            message = f"agy {version[0]} is too old: {min_version} or newer is required."
            raise CliNotFound(message, hint=INSTALL_HINT)
        if not self._checked_binaries:
            logger.warning("%s", TERMS_NOTICE)
        self._checked_binaries.add(binary.path)

    @cached_property
    def _allowed_variables(self) -> dict[str, str]:
        """Computed once: our environment does not change while we run."""
        return allowed_variables(self._environ, self._settings.pass_env)

    def _environment(self) -> dict[str, str]:
        """Return the variables for agy, with no key except the one that its settings select."""
        variables = dict(self._allowed_variables)
        for name in GEMINI_KEY_VARIABLES:
            if name != "GEMINI_API_KEY" or not self._uses_api_key():
                variables.pop(name, None)
        return variables | {"AGY_CLI_DISABLE_AUTO_UPDATE": "1", "NO_COLOR": "1"}

    def _uses_api_key(self) -> bool:
        home = home_folder(self._environ)
        try:
            text = (home / ".gemini/antigravity-cli/settings.json").read_text(encoding="utf-8")
            agy_settings = cast("JsonValue", json.loads(text))
        except (OSError, ValueError):
            return False
        return isinstance(agy_settings, dict) and agy_settings.get("modelProvider") == "gemini"
