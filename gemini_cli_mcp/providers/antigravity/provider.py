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
from pathlib import Path

from gemini_cli_mcp import prompts
from gemini_cli_mcp.errors import (
    CliNotFound,
    ConfigError,
    ExecutionFailed,
    GeminiMcpError,
    InvalidInput,
    NotSignedIn,
    PermissionDenied,
    QuotaExhausted,
    RateLimited,
    TimedOut,
)
from gemini_cli_mcp.json_values import JsonObject, object_or_empty
from gemini_cli_mcp.process.run import Completed, run
from gemini_cli_mcp.providers.antigravity.binary import INSTALL_HINT, find_agy
from gemini_cli_mcp.providers.antigravity.events import SEARCH_TOOL, AgyEventLog
from gemini_cli_mcp.providers.base import GroundingOptions, Reply
from gemini_cli_mcp.providers.child_environment import allowed_variables
from gemini_cli_mcp.providers.quota_breaker import QuotaBreakers, breaker_key
from gemini_cli_mcp.providers.run_limiter import RunLimiter
from gemini_cli_mcp.redaction import redact
from gemini_cli_mcp.sanitize import replace_unsafe_chars
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.types import ProgressCallback
from gemini_cli_mcp.workspace import Workspace

logger = logging.getLogger(__name__)

MIN_VERSION = (1, 1, 15)
"""Older versions lose output without a terminal and corrupt non-ASCII text."""
GEMINI_KEY_VARIABLES = ("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_APPLICATION_CREDENTIALS")
"""Credentials of the gemini CLI, which agy should not see."""
MAX_ARGUMENT_BYTES = 100_000
"""Maximum size of a prompt passed as an argument; longer ones are sent on stdin."""
TERMS_NOTICE = (
    "The provider antigravity uses your own Antigravity login. Google's terms are ambiguous about "
    "automated use by other programs, and accounts have been suspended for related uses. Prefer an "
    "API key."
)
SIGN_IN_HINT = "Run `gemini-cli-mcp login antigravity` in a terminal and sign in."

_PERMISSION_DENIED = re.compile(
    r"auto-denied|permission that headless mode cannot prompt", re.IGNORECASE
)
_AUTH = re.compile(
    r"authentication (?:failed|required|timed out)|to log in|not logged in|o/oauth2/",
    re.IGNORECASE,
)
_QUOTA = re.compile(r"quota|out of credits|AI credits|RESOURCE_EXHAUSTED", re.IGNORECASE)
_OVERLOADED = re.compile(r"MODEL_CAPACITY_EXHAUSTED|\b503\b|overloaded", re.IGNORECASE)
_UNKNOWN_MODEL = re.compile(r"(?:unknown|invalid|unsupported) (?:model|effort)", re.IGNORECASE)
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

    async def ask(self, prompt: str, progress: ProgressCallback, file: Path | None = None) -> Reply:
        """Answer with agy's own web search; a correction gets its file inlined in the prompt."""
        if file:
            return await self._ask(prompts.inline_file(prompt, file), progress, [])
        reply = await self._ask(prompt, progress, [])
        if not any(search.error is None for search in reply.searches):
            raise ExecutionFailed("agy answered without searching.")
        return reply

    async def grounded_search(
        self, query: str, options: GroundingOptions, progress: ProgressCallback
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
        return await self._ask(prompt, progress, flags, accept_failed_with_sources=True)

    async def _ask(
        self,
        prompt: str,
        progress: ProgressCallback,
        flags: list[str],
        *,
        accept_failed_with_sources: bool = False,
    ) -> Reply:
        """Run agy and return its reply, or raise if it failed.

        With `accept_failed_with_sources`, a run that found sources before it failed is accepted.
        """
        binary = find_agy(self._settings.agy_path, self._environ)
        argv = [str(binary), "--output-format", "stream-json", "--disable-slash-commands"]
        argv += flags or ["--effort", "low"]
        stdin = b""
        if len(prompt.encode()) <= MAX_ARGUMENT_BYTES:
            argv += ["--print-timeout", f"{self._timeout:.0f}s", f"--print={prompt}"]
        else:
            argv += ["--input-format", "stream-json"]
            message = {"event": "user", "message": {"content": prompt}}
            stdin = json.dumps(message).encode() + b"\n"
        events = AgyEventLog(progress)
        key = breaker_key("agy", *flags)
        self._breakers.raise_if_open(key)
        async with self._limiter.acquire(progress):
            with self._breakers.guard(key):
                await self._check_version(binary)
                progress("starting agy")
                completed = await self._run(argv, stdin, events)
                reply = events.reply()
                has_sources = any(search.sources for search in reply.searches)
                if (error := self._find_failure(completed, events)) and not (
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

    async def _check_version(self, binary: Path) -> None:
        """Check each binary once; log the terms notice with the first."""
        if binary in self._checked_binaries:
            return
        lines: list[bytes] = []
        with self._workspace.os_errors_as_config_error():
            working_folder = self._workspace.folder("antigravity", "work")
        try:
            completed = await run(
                [str(binary), "--version"],
                stdin=b"",
                env=self._environment(),
                cwd=working_folder,
                on_line=lines.append,
                idle_timeout=lambda: 10.0,
                timeout=10.0,
            )
        except OSError as error:
            raise CliNotFound(
                f"{binary} cannot be run: {error.strerror}.", hint=INSTALL_HINT
            ) from None
        output = b" ".join(lines).decode(errors="replace") + completed.stderr
        version = _VERSION.search(output)
        if version is None:
            raise CliNotFound(f"{binary} does not report its version.", hint=INSTALL_HINT)
        if tuple(map(int, version.groups())) < MIN_VERSION:
            min_version = ".".join(map(str, MIN_VERSION))
            message = f"agy {version[0]} is too old: {min_version} or newer is required."
            raise CliNotFound(message, hint=INSTALL_HINT)
        if not self._checked_binaries:
            logger.warning("%s", TERMS_NOTICE)
        self._checked_binaries.add(binary)

    def _environment(self) -> dict[str, str]:
        """Return the variables for agy, with no key except the one that its settings select."""
        variables = allowed_variables(self._environ, self._settings.pass_env)
        for name in GEMINI_KEY_VARIABLES:
            if name != "GEMINI_API_KEY" or not self._uses_api_key():
                variables.pop(name, None)
        return variables | {"AGY_CLI_DISABLE_AUTO_UPDATE": "1", "NO_COLOR": "1"}

    def _uses_api_key(self) -> bool:
        home = Path(self._environ.get("HOME") or Path.home())
        try:
            text = (home / ".gemini/antigravity-cli/settings.json").read_text(encoding="utf-8")
            return object_or_empty(json.loads(text)).get("modelProvider") == "gemini"
        except (OSError, ValueError):
            return False

    def _find_failure(self, completed: Completed, events: AgyEventLog) -> GeminiMcpError | None:
        """Return why the run failed, or None. The exit code is not meaningful."""
        result: JsonObject = events.result or {}
        error_message = redact(str(result.get("error") or ""), self._secrets)
        text = f"{error_message}\n{redact(completed.stderr, self._secrets)}"
        details = replace_unsafe_chars(text).strip()[-2000:] or None
        if result.get("status") == "SUCCESS" and events.text.strip():
            return None
        if error := _classify_text(text, details):
            return error
        if completed.end_reason in ("idle", "timeout"):
            return TimedOut("agy did not finish in time and was stopped.", details=details)
        if completed.end_reason == "output_limit":
            return ExecutionFailed(
                "agy exceeded the output limit and was stopped.", details=details
            )
        if events.result is None:
            return ExecutionFailed("agy exited before completing its answer.", details=details)
        if result.get("status") == "SUCCESS":
            return ExecutionFailed("agy returned an empty answer.", details=details)
        first_line = (
            replace_unsafe_chars(error_message.partition("\n")[0])[:300] or "no reason given"
        )
        return ExecutionFailed(f"agy failed: {first_line}", details=details)


def _classify_text(text: str, details: str | None) -> GeminiMcpError | None:
    """Return the error that the text describes, if it is a known one."""
    if _AUTH.search(text):
        return NotSignedIn("agy is not signed in.", hint=SIGN_IN_HINT, details=details)
    if _PERMISSION_DENIED.search(text):
        message = "agy needed permission for a tool and could not ask for it in headless mode."
        return PermissionDenied(message, details=details)
    if _OVERLOADED.search(text):
        return RateLimited("The model is overloaded.", details=details)
    if _QUOTA.search(text):
        return QuotaExhausted("The Antigravity quota is exhausted.", details=details)
    if _UNKNOWN_MODEL.search(text):
        return ConfigError("agy does not support the model or the effort level.", details=details)
    return None
