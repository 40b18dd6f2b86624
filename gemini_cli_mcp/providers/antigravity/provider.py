"""Ask the official `agy` CLI (Antigravity), only where the user listed it.

It knows no private home and no list of tools: it runs with the user's own settings, in an empty
folder, and what it may do without asking is what it does. Facts as of 1.2.16; it was not run
here, so all of it is played by scripts/stub-agy in its recorded shapes.
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
from gemini_cli_mcp.json_values import Object, as_object
from gemini_cli_mcp.process.run import Completed, run
from gemini_cli_mcp.providers.antigravity.binary import INSTALL, find_agy
from gemini_cli_mcp.providers.antigravity.events import SEARCH_TOOL, Session
from gemini_cli_mcp.providers.base import Grounding, Reply
from gemini_cli_mcp.providers.child_environment import allowed
from gemini_cli_mcp.providers.quota_breaker import Quotas, name_of
from gemini_cli_mcp.providers.run_limiter import Places
from gemini_cli_mcp.redaction import redact
from gemini_cli_mcp.sanitize import scrub
from gemini_cli_mcp.settings.env import Config
from gemini_cli_mcp.types import Evidence, Progress
from gemini_cli_mcp.workspace import Workspace

logger = logging.getLogger(__name__)

OLDEST = (1, 1, 15)
"""Older ones lose output without a terminal, and break text that is not ASCII."""
KEYS = ("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_APPLICATION_CREDENTIALS")
"""The gemini CLI's, not agy's."""
LARGEST_ARGUMENT = 100_000
"""Bytes of a prompt that go into an argument; longer ones go by stdin."""
NOTICE = (
    "The provider antigravity uses your own Antigravity login. Google's terms are ambiguous about "
    "other programs driving it, and accounts were suspended for related uses: prefer an API key."
)
SIGN_IN = "Run `gemini-cli-mcp login antigravity` in a terminal and sign in."

_DENIED = re.compile(r"auto-denied|permission that headless mode cannot prompt", re.IGNORECASE)
_AUTH = re.compile(
    r"authentication (?:failed|required|timed out)|to log in|not logged in|o/oauth2/",
    re.IGNORECASE,
)
_QUOTA = re.compile(r"quota|out of credits|AI credits|RESOURCE_EXHAUSTED", re.IGNORECASE)
_BUSY = re.compile(r"MODEL_CAPACITY_EXHAUSTED|\b503\b|overloaded", re.IGNORECASE)
_NO_MODEL = re.compile(r"(?:unknown|invalid|unsupported) (?:model|effort)", re.IGNORECASE)
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")


class AntigravityCli:
    """The provider `antigravity`."""

    name = "antigravity"
    asked_model: str | None = None
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
    ) -> None:
        self._places = places
        self._quotas = quotas
        self._config = config
        self._workspace = workspace
        self._environ = environ
        self._secrets = config.secrets
        self._checked: set[Path] = set()
        """Binaries that are new enough."""

    async def ask(self, prompt: str, progress: Progress, file: Path | None = None) -> Reply:
        """Answer with its own web search; a correction is told its file in the prompt."""
        if file:
            return await self._ask(prompts.inlined(prompt, file), progress, [])
        reply = await self._ask(prompt, progress, [])
        if not any(search.error is None for search in reply.searches):
            raise ExecutionFailed("agy answered without having searched.")
        return reply

    async def ground(self, query: str, how: Grounding, progress: Progress) -> Reply:
        """Let it make one search; what that returned is the answer."""
        if how.thinking == "off":
            raise InvalidInput("`thinking`: agy always thinks; `gemini` and `api` can go without.")
        flags = ["--effort", how.thinking]
        if how.model != "flash":
            flags += ["--model", how.model]
        mark = os.urandom(4).hex()
        prompt = prompts.fill("grounded-prompt", query=query, mark=mark, tool=SEARCH_TOOL)
        return await self._ask(prompt, progress, flags, searched=True)

    async def _ask(
        self, prompt: str, progress: Progress, flags: list[str], *, searched: bool = False
    ) -> Reply:
        """A reply that did not fail; with `searched`, one that found something before it did."""
        binary = find_agy(self._config.agy_path, self._environ)
        argv = [str(binary), "--output-format", "stream-json", "--disable-slash-commands"]
        argv += flags or ["--effort", "low"]
        stdin = b""
        if len(prompt.encode()) <= LARGEST_ARGUMENT:
            argv += ["--print-timeout", f"{self._timeout:.0f}s", f"--print={prompt}"]
        else:
            argv += ["--input-format", "stream-json"]
            message = {"event": "user", "message": {"content": prompt}}
            stdin = json.dumps(message).encode() + b"\n"
        session = Session(progress)
        quota = name_of("agy", *flags)
        self._quotas.check(quota)
        async with self._places.one(progress):
            with self._quotas.asking(quota):
                await self._check_version(binary)
                progress("starting agy")
                completed = await self._run(argv, stdin, session)
                reply = session.reply()
                found = any(search.sources for search in reply.searches)
                if (error := self._failure(completed, session)) and not (searched and found):
                    raise error
        return reply

    async def _run(self, argv: list[str], stdin: bytes, session: Session) -> Completed:
        with self._workspace.usable():
            work = self._workspace.folder("antigravity", "work")
        limits = self._config.limits
        try:
            return await run(
                argv,
                stdin=stdin,
                env=self._environment(),
                cwd=work,
                on_line=session.feed,
                idle=lambda: limits.agy_idle if session.has_begun else limits.agy_idle_at_start,
                timeout=self._timeout,
                scratch=self._workspace.root(),
                # Not until its pipes close: servers that it started may hold them for ever.
                finished=lambda: session.result is not None,
            )
        except OSError as error:
            raise CliNotFound(f"{argv[0]} cannot be run: {error.strerror}.", hint=INSTALL) from None

    @property
    def _timeout(self) -> float:
        return max(self._config.timeout, self._config.round_timeout)

    async def _check_version(self, binary: Path) -> None:
        """Once for each binary; with the first comes the notice."""
        if binary in self._checked:
            return
        lines: list[bytes] = []
        with self._workspace.usable():
            work = self._workspace.folder("antigravity", "work")
        try:
            completed = await run(
                [str(binary), "--version"],
                stdin=b"",
                env=self._environment(),
                cwd=work,
                on_line=lines.append,
                idle=lambda: 10.0,
                timeout=10.0,
            )
        except OSError as error:
            raise CliNotFound(f"{binary} cannot be run: {error.strerror}.", hint=INSTALL) from None
        said = b" ".join(lines).decode(errors="replace") + completed.stderr
        numbers = _VERSION.search(said)
        if numbers is None:
            raise CliNotFound(f"{binary} does not tell its version.", hint=INSTALL)
        if tuple(map(int, numbers.groups())) < OLDEST:
            oldest = ".".join(map(str, OLDEST))
            message = f"agy {numbers[0]} is too old: {oldest} or newer is needed."
            raise CliNotFound(message, hint=INSTALL)
        if not self._checked:
            logger.warning("%s", NOTICE)
        self._checked.add(binary)

    def _environment(self) -> dict[str, str]:
        """What a CLI may see; of keys, only the one that its own settings tell it to use."""
        kept = allowed(self._environ, self._config.pass_env)
        for name in KEYS:
            if name != "GEMINI_API_KEY" or not self._uses_a_key():
                kept.pop(name, None)
        return kept | {"AGY_CLI_DISABLE_AUTO_UPDATE": "1", "NO_COLOR": "1"}

    def _uses_a_key(self) -> bool:
        home = Path(self._environ.get("HOME") or Path.home())
        try:
            text = (home / ".gemini/antigravity-cli/settings.json").read_text(encoding="utf-8")
            return as_object(json.loads(text)).get("modelProvider") == "gemini"
        except (OSError, ValueError):
            return False

    def _failure(self, completed: Completed, session: Session) -> GeminiMcpError | None:
        """Why the run failed; its exit code means nothing."""
        result: Object = session.result or {}
        said = redact(str(result.get("error") or ""), self._secrets)
        words = f"{said}\n{redact(completed.stderr, self._secrets)}"
        details = scrub(words).strip()[-2000:] or None
        if result.get("status") == "SUCCESS" and session.text.strip():
            return None
        if error := _named(words, details):
            return error
        if completed.ended in ("idle", "timeout"):
            return TimedOut("agy did not finish in time and was ended.", details=details)
        if completed.ended == "flood":
            return ExecutionFailed("agy wrote without end and was ended.", details=details)
        if session.result is None:
            return ExecutionFailed("agy stopped in the middle of its answer.", details=details)
        if result.get("status") == "SUCCESS":
            return ExecutionFailed("agy gave an empty answer.", details=details)
        first = scrub(said.partition("\n")[0])[:300] or "it gave no reason"
        return ExecutionFailed(f"agy failed: {first}", details=details)


def _named(words: str, details: str | None) -> GeminiMcpError | None:
    """The failure that its words tell of."""
    if _AUTH.search(words):
        return NotSignedIn("agy is not signed in.", hint=SIGN_IN, details=details)
    if _DENIED.search(words):
        said = "agy wanted to use a tool that needs a permission, and nobody could give it."
        return PermissionDenied(said, details=details)
    if _BUSY.search(words):
        return RateLimited("The model is overloaded.", details=details)
    if _QUOTA.search(words):
        return QuotaExhausted("The Antigravity quota is used up.", details=details)
    if _NO_MODEL.search(words):
        return ConfigError("agy does not know the model or the effort.", details=details)
    return None
