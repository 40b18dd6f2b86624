"""All errors that callers can see: a code to branch on, what happened, and what to do next.

GeminiMcpError
├── CliNotFound       CLI_NOT_FOUND    no usable gemini binary
├── NotSignedIn       AUTH_ERROR       the CLI has no sign-in that Google accepts
│                      (`sign_in_errors` has one class per cause)
├── QuotaExhausted    QUOTA_EXHAUSTED  waiting a few minutes will not help
├── RateLimited       RATE_LIMITED     waiting `retry_after_s` will help
├── TimedOut          TIMEOUT          a deadline passed
├── ExecutionFailed   EXECUTION_ERROR  the run failed, or its answer was unusable
│                      (`execution_errors` has the causes with a next step of their own)
├── NoResults         NO_RESULTS       the search succeeded but found nothing
├── EngineFailed      ENGINE_ERROR     a web_search engine failed
├── NotGrounded       NOT_GROUNDED     the model answered without searching
├── NoProvider        NO_PROVIDER      none of the configured providers is usable
├── Cancelled         CANCELLED        the call was cancelled before it had a result
├── Busy              BUSY             the queue is full
├── NotFound          NOT_FOUND        no such job
├── InvalidInput      INVALID_INPUT    invalid arguments
└── ConfigError       CONFIG_ERROR     invalid configuration

Errors of libraries and CLIs are translated where they can be interpreted; each public surface
turns these into its own format in one place (`research.result_json`). Messages never contain a key,
a token, a prompt or a stack trace.
"""

from copy import copy
from typing import ClassVar, Self

from gemini_cli_mcp.types import RecordedSearch

INSTALL_HINT = (
    "Install it with `npm install -g @google/gemini-cli` (requires Node 20 or newer), or set "
    "GEMINI_MCP_CLI_PATH to the absolute path of the `gemini` binary. Desktop apps have a shorter "
    "PATH than your terminal: run `which gemini` there to get the path."
)


class GeminiMcpError(Exception):
    """Base class of all errors that are shown to callers."""

    code: ClassVar[str]
    retryable: ClassVar[bool] = False
    hint: ClassVar[str] = ""
    terminal_hint: ClassVar[str] = ""
    """The hint for a person in a terminal, if it differs."""
    is_final: bool = False
    """Whether repeating the run within the same call would not help."""

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        terminal_hint: str | None = None,
        details: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        """Without a hint, those of the class apply; one hint alone is for terminals too."""
        super().__init__(message)
        self.message = message
        self.next_step = self.hint if hint is None else hint
        own_terminal_hint = self.terminal_hint or self.hint if hint is None else hint
        self._terminal_step = own_terminal_hint if terminal_hint is None else terminal_hint
        self.details = details
        self.retry_after_s = retry_after_s
        self.searches: tuple[RecordedSearch, ...] = ()
        """The searches that succeeded before the run failed."""

    def with_message(self, message: str) -> Self:
        """Return the same error with another message."""
        error = copy(self)
        error.args = (message,)
        error.message = message
        return error

    def with_searches(self, searches: tuple[RecordedSearch, ...]) -> Self:
        """Return the same error with what the failed run found."""
        error = copy(self)
        error.searches = searches
        return error

    def as_final(self) -> Self:
        """Return the same error, not to be retried within the same call."""
        error = copy(self)
        error.is_final = True
        return error

    def for_terminal(self) -> Self:
        """Return the same error with the hint for a person in a terminal."""
        error = copy(self)
        error.next_step = self._terminal_step
        return error

    def for_another_call(self, message: str, retry_after_s: float) -> Self:
        """Return the error for a call that fails for the same reason: without details of a run."""
        return type(self)(
            message,
            hint=self.next_step,
            terminal_hint=self._terminal_step,
            retry_after_s=retry_after_s,
        )

    def without_text(self) -> Self:
        """Return the same error without message, hint and details."""
        return type(self)("", hint="")


def to_public_error(error: Exception) -> GeminiMcpError:
    """Convert any exception; an unexpected one reveals nothing but its type."""
    if isinstance(error, GeminiMcpError):
        return error
    return ExecutionFailed(f"Internal error ({type(error).__name__}).")


class CliNotFound(GeminiMcpError):
    """No usable gemini CLI is installed."""

    code = "CLI_NOT_FOUND"
    hint = INSTALL_HINT
    terminal_hint = INSTALL_HINT.partition(" Desktop apps")[0]


class NotSignedIn(GeminiMcpError):
    """The CLI is not signed in, or Google rejected its credentials."""

    code = "AUTH_ERROR"
    hint = (
        "Set GEMINI_API_KEY in the server's environment (for Claude Desktop: in the `env` block of "
        "its configuration) or in ~/.gemini/.env. `gemini-cli-mcp doctor` checks the sign-in."
    )
    terminal_hint = (
        "Set GEMINI_API_KEY in this shell or in ~/.gemini/.env. `gemini-cli-mcp doctor` checks "
        "the sign-in."
    )


class QuotaExhausted(GeminiMcpError):
    """The daily quota or the prepaid credit is exhausted."""

    code = "QUOTA_EXHAUSTED"
    hint = (
        "Wait until the quota resets, set GEMINI_MODEL to a model with remaining quota, or use a "
        "key with a higher limit. Use another search tool in the meantime."
    )
    terminal_hint = hint.partition(" Use another search tool")[0]


class RateLimited(GeminiMcpError):
    """Too many requests in a short time."""

    code = "RATE_LIMITED"
    retryable = True
    hint = "Wait, then call again. `retry_after_s`, if present, is the delay that Google requested."
    terminal_hint = "Wait, then run the command again."


class TimedOut(GeminiMcpError):
    """A deadline passed before there was an answer."""

    code = "TIMEOUT"
    retryable = True
    hint = "Ask a narrower question, or raise GEMINI_MCP_TIMEOUT."


class ExecutionFailed(GeminiMcpError):
    """The CLI ran but failed, or its answer was unusable."""

    code = "EXECUTION_ERROR"
    retryable = True
    hint = "Try again. If it keeps failing, run `gemini` in a terminal to see its error message."


class NoResults(GeminiMcpError):
    """The search succeeded but found nothing."""

    code = "NO_RESULTS"
    hint = "Rephrase the query, widen `recency`, or use another engine."


class EngineFailed(GeminiMcpError):
    """A web_search engine failed."""

    code = "ENGINE_ERROR"
    retryable = True
    hint = "Try again, or choose another engine."


class EngineRefused(EngineFailed):
    """An engine rejected the request, and retrying will not help."""

    retryable = False
    hint = "Fix the engine's settings, or choose another engine."


class NotGrounded(GeminiMcpError):
    """The model answered without searching."""

    code = "NOT_GROUNDED"
    retryable = True
    hint = "Rephrase the question so that it requires a web search, or use `search`."


class NoProvider(GeminiMcpError):
    """None of the configured providers is usable."""

    code = "NO_PROVIDER"
    hint = "Install one of the providers in GEMINI_MCP_PROVIDERS and sign in to it."


class Cancelled(GeminiMcpError):
    """The call was cancelled before there was anything to return."""

    code = "CANCELLED"
    hint = "Call again if you still need the result."
    terminal_hint = "Run the command again if you still need the result."


class Busy(GeminiMcpError):
    """The queue of waiting calls is full."""

    code = "BUSY"
    retryable = True
    hint = (
        "Call again after `retry_after_s`. GEMINI_MCP_CONCURRENCY and GEMINI_MCP_WARM_SESSIONS "
        "limit how many calls run at the same time, GEMINI_MCP_QUEUE how many wait."
    )


class NotFound(GeminiMcpError):
    """No job has this id, or it belongs to another owner."""

    code = "NOT_FOUND"
    hint = "Use the `job_id` that `deep_search` returned, or start `deep_search` again."


class InvalidInput(GeminiMcpError):
    """The arguments of a call are invalid."""

    code = "INVALID_INPUT"
    hint = "Fix the argument and call again."
    terminal_hint = "Fix the argument and run the command again."


class ConfigError(GeminiMcpError):
    """An environment variable, a file it points to, or a command-line option is invalid."""

    code = "CONFIG_ERROR"
    hint = "Fix the variable in the server's environment and restart the server."
    terminal_hint = (
        "Fix it and run the command again. `gemini-cli-mcp doctor` checks the configuration."
    )


class ModelNotFound(ConfigError):
    """The API does not know the requested model."""
