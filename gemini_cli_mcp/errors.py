"""Every failure a caller can meet: a code to branch on, what happened, what to do next.

GeminiMcpError
├── CliNotFound       CLI_NOT_FOUND    no usable gemini binary
├── NotSignedIn       AUTH_ERROR       the CLI has no sign-in that Google accepts
├── QuotaExhausted    QUOTA_EXHAUSTED  waiting minutes will not help
├── RateLimited       RATE_LIMITED     waiting `retry_after_s` will help
├── TimedOut          TIMEOUT          a deadline passed
├── ExecutionFailed   EXECUTION_ERROR  the run failed, or its answer could not be used
├── NoResults         NO_RESULTS       the search worked and found nothing
├── EngineFailed      ENGINE_ERROR     a web_search engine failed
├── NotGrounded       NOT_GROUNDED     there is an answer, but no search behind it
├── NoProvider        NO_PROVIDER      none of the providers can be used
├── Cancelled         CANCELLED        the caller stopped it before there was a result
├── Busy              BUSY             too many calls wait already
├── NotFound          NOT_FOUND        there is no such job
├── InvalidInput      INVALID_INPUT    the caller's arguments
└── ConfigError       CONFIG_ERROR     the environment's variables

Raised where the foreign failure is understood, translated outward once per surface
with `failure_result`. Messages never hold a key, a token, a prompt or a stack trace.
"""

from typing import ClassVar

INSTALL_HINT = (
    "Install it with `npm install -g @google/gemini-cli` (it needs Node 20 or newer), or set "
    "GEMINI_MCP_CLI_PATH to the absolute path of the `gemini` binary. Desktop apps see a shorter "
    "PATH than your terminal: `which gemini` there tells the path to use."
)


class GeminiMcpError(Exception):
    """Base of all failures that callers are meant to see."""

    code: ClassVar[str]
    retryable: ClassVar[bool] = False
    hint: ClassVar[str] = ""

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        details: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.next_step = self.hint if hint is None else hint
        self.details = details
        self.retry_after_s = retry_after_s

    def as_dict(self) -> dict[str, object]:
        """The `error` object of a failure result."""
        error: dict[str, object] = {"code": self.code, "message": self.message}
        if self.details:
            error["details"] = self.details
        if self.next_step:
            error["hint"] = self.next_step
        error["retryable"] = self.retryable
        if self.retry_after_s is not None:
            error["retry_after_s"] = self.retry_after_s
        return error


def to_public_error(error: Exception) -> GeminiMcpError:
    """The failure as one of ours; one that nobody foresaw tells no more than its type."""
    if isinstance(error, GeminiMcpError):
        return error
    return ExecutionFailed(f"It failed unexpectedly ({type(error).__name__}).")


def failure_result(error: Exception) -> dict[str, object]:
    """What a caller gets for any failure."""
    return {"success": False, "error": to_public_error(error).as_dict()}


class CliNotFound(GeminiMcpError):
    """There is no gemini CLI that we can run."""

    code = "CLI_NOT_FOUND"
    hint = INSTALL_HINT


class NotSignedIn(GeminiMcpError):
    """The CLI has no sign-in, or Google refused the one it has."""

    code = "AUTH_ERROR"
    hint = (
        "Set GEMINI_API_KEY in the server's environment (for Claude Desktop: in the `env` block of "
        "its configuration) or in ~/.gemini/.env, or run `gemini` once in a terminal to sign in."
    )


class QuotaExhausted(GeminiMcpError):
    """The quota of the day, or the credit, is used up."""

    code = "QUOTA_EXHAUSTED"
    hint = (
        "Wait until the quota is renewed, set GEMINI_MODEL to a model with quota left, or use a "
        "key with a higher limit. Another search tool can serve meanwhile."
    )


class RateLimited(GeminiMcpError):
    """Too many requests for now."""

    code = "RATE_LIMITED"
    retryable = True
    hint = "Wait, then call again. `retry_after_s`, where given, is what Google asked for."


class TimedOut(GeminiMcpError):
    """A deadline passed before there was an answer."""

    code = "TIMEOUT"
    retryable = True
    hint = "Ask a narrower question, or raise GEMINI_MCP_TIMEOUT."


class ExecutionFailed(GeminiMcpError):
    """The CLI ran and failed, or answered what nothing could be made of."""

    code = "EXECUTION_ERROR"
    retryable = True
    hint = "Try again. If it keeps failing, run `gemini` once in a terminal to see what it says."


class PermissionDenied(ExecutionFailed):
    """The CLI wanted to do what it may not, and nobody is there to allow it."""

    retryable = False
    hint = "Ask for something that needs a web search only."


class NoResults(GeminiMcpError):
    """The search worked and found nothing."""

    code = "NO_RESULTS"
    hint = "Use other words, a wider `recency`, or another engine."


class EngineFailed(GeminiMcpError):
    """An engine of web_search failed."""

    code = "ENGINE_ERROR"
    retryable = True
    hint = "Try again, or choose another engine."


class EngineRefused(EngineFailed):
    """An engine will not take this request, however often it is sent."""

    retryable = False
    hint = "Correct the engine's settings, or choose another engine."


class NotGrounded(GeminiMcpError):
    """The model answered, but no search was behind it."""

    code = "NOT_GROUNDED"
    retryable = True
    hint = "Word the question so that it needs the web, or use `search`."


class NoProvider(GeminiMcpError):
    """None of the providers can be used."""

    code = "NO_PROVIDER"
    hint = "Install and sign in one of the providers of GEMINI_MCP_PROVIDERS."


class Cancelled(GeminiMcpError):
    """The caller stopped it before there was anything to return."""

    code = "CANCELLED"
    hint = "Start it again if the result is still wanted."


class Busy(GeminiMcpError):
    """As many calls as may wait are waiting already."""

    code = "BUSY"
    retryable = True
    hint = (
        "Call again after `retry_after_s`. GEMINI_MCP_CONCURRENCY, GEMINI_MCP_WARM_SESSIONS and "
        "GEMINI_MCP_QUEUE say how many may run and wait."
    )


class NotFound(GeminiMcpError):
    """There is no job of this id, or it belongs to somebody else."""

    code = "NOT_FOUND"
    hint = "Use the `job_id` that `deep_search` returned, or start `deep_search` again."


class InvalidInput(GeminiMcpError):
    """The arguments of a call cannot be used."""

    code = "INVALID_INPUT"
    hint = "Correct the argument and call again."


class ConfigError(GeminiMcpError):
    """An environment variable, or what it points to, cannot be used."""

    code = "CONFIG_ERROR"
    hint = "Correct the variable in the server's environment and start it again."
