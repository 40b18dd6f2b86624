"""Try the sign-in: a key with a request to the API, anything else with a run of the CLI itself.

Sign-in files are the CLI's own business: they are never read here, so only a run of the CLI shows
whether they work.
"""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio

from gemini_cli_mcp.call_context import CallContext
from gemini_cli_mcp.cli.doctor import models_request, shell_commands
from gemini_cli_mcp.cli.doctor.findings import Finding, note, ok, problem
from gemini_cli_mcp.cli.doctor.models_request import describe_route
from gemini_cli_mcp.cli.doctor.sign_in_checks import SIGN_IN_OPTIONS, set_key_command
from gemini_cli_mcp.errors import (
    ConfigError,
    ConnectionFailed,
    GeminiMcpError,
    NotSignedIn,
    RateLimited,
)
from gemini_cli_mcp.providers.gemini.binary import GeminiBinary
from gemini_cli_mcp.providers.gemini.home import is_model_alias
from gemini_cli_mcp.providers.gemini.provider import GeminiCliProvider
from gemini_cli_mcp.providers.quota_breaker import QuotaBreakers
from gemini_cli_mcp.providers.run_limiter import RunLimiter
from gemini_cli_mcp.sanitize import redact
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.workspace import Workspace

TRIAL_PROMPT = "Reply with the single word OK. Do not search."
TRIAL_MODEL = "gemini-2.5-flash"
"""A full name: for an alias the CLI first asks another model, and retries that one for minutes."""
MAX_CLOCK_ERROR = timedelta(hours=1)
TOPIC = "sign-in"


async def try_sign_in(
    settings: Settings, binary: GeminiBinary, environ: Mapping[str, str], sign_in: str
) -> list[Finding]:
    """Try the sign-in that a search would use; `sign_in` is its description."""
    reason = ""
    if binary.is_official and environ.get("GEMINI_API_KEY"):
        findings, reason = await try_key(settings, environ)
        if findings:
            return findings
    finding = await _try_run(settings, binary, environ, sign_in)
    if reason and finding.status == "problem":
        finding = problem(TOPIC, f"{finding.message} ({reason})", finding.fix or "")
    return [finding]


async def try_key(settings: Settings, environ: Mapping[str, str]) -> tuple[list[Finding], str]:
    """Try GEMINI_API_KEY; without findings, the second value says why it could not be tried."""
    route = describe_route(environ)
    seconds = settings.limits.sign_in_timeout
    try:
        with anyio.fail_after(seconds):
            response = await models_request.request_models(environ, seconds)
    except models_request.NotSupported as error:
        return [], str(error)
    except (models_request.ConnectionFailed, TimeoutError) as error:
        reason = str(error) or f"no answer within {seconds:g} s"
        return [_unreachable(environ, reason)], ""
    clock = _check_clock(response.clock_error)
    match response.status:
        case 200:
            finding = ok(TOPIC, f"GEMINI_API_KEY (not shown) was accepted by {route}")
        case 429:
            finding = note(TOPIC, f"GEMINI_API_KEY: {route} limits requests: {response.message}")
        case 400 | 401:
            message = f"GEMINI_API_KEY was refused by {route}: {response.message}"
            finding = problem(TOPIC, message, set_key_command())
        case 403:
            message = f"access was denied (403) by {route}: {response.message}"
            finding = problem(TOPIC, message, set_key_command())
        case status if status >= 500:
            message = f"{route} is failing ({status}): {response.message}"
            finding = problem(TOPIC, message, "gemini-cli-mcp doctor  # try again later")
        case status:  # a gateway without this endpoint
            return [], f"{route} has no list of models ({status})"
    return [finding, *clock], ""


async def _try_run(
    settings: Settings, binary: GeminiBinary, environ: Mapping[str, str], sign_in: str
) -> Finding:
    """Ask the CLI for one word."""
    is_own_model = settings.model is not None and not is_model_alias(settings.model)
    seconds = settings.limits.sign_in_timeout
    with TemporaryDirectory() as folder:
        changes = {
            "config_dir": Path(folder) / "config",
            "model": settings.model if is_own_model else TRIAL_MODEL,
            "cli_path": str(binary.path),
        }
        settings = settings.model_copy(update=changes)
        workspace = Workspace(settings.config_dir)
        provider = GeminiCliProvider(
            settings, workspace, environ, RunLimiter(1, 1), QuotaBreakers()
        )
        try:
            with anyio.fail_after(seconds):
                await provider.ask(TRIAL_PROMPT, CallContext())
        except TimeoutError:
            message = f"{sign_in}: gemini gave no answer within {seconds:g} s"
            return problem(TOPIC, message, _network_fix(environ))
        except GeminiMcpError as error:
            return _failed_run(error, environ, settings, sign_in, is_own_model=is_own_model)
        finally:
            workspace.close()
    if not binary.is_official:
        message = (
            "this CLI answered a short prompt; that says nothing about a key or login of yours"
        )
        return ok(TOPIC, message)
    return ok(TOPIC, f"{sign_in}: gemini answered a short prompt")


def _failed_run(
    error: GeminiMcpError,
    environ: Mapping[str, str],
    settings: Settings,
    sign_in: str,
    *,
    is_own_model: bool,
) -> Finding:
    message = f"{sign_in}: {redact(error.message, settings.secrets)}"
    match error:
        case ConnectionFailed():
            return _unreachable(environ, "gemini could not connect")
        case NotSignedIn():
            # The options are news for people whose login stopped working, or who have none.
            options = "" if environ.get("GEMINI_API_KEY") else f" {SIGN_IN_OPTIONS}"
            return problem(TOPIC, message + options, set_key_command())
        case RateLimited():
            return note(TOPIC, message)
        case ConfigError() if not is_own_model:
            return ok(TOPIC, f"{sign_in}: Google accepted it")  # but does not offer TRIAL_MODEL
        case _:
            return problem(TOPIC, message, error.next_step)


def _unreachable(environ: Mapping[str, str], reason: str) -> Finding:
    message = f"no connection to {describe_route(environ)}: {reason}"
    return problem(TOPIC, message, _network_fix(environ))


def _network_fix(environ: Mapping[str, str]) -> str:
    if name := models_request.proxy_variable(environ):
        return f"{shell_commands.unset_variables([name])}  # or correct it"
    return f"curl -I {models_request.base_url(environ)}  # check the network until this works"


def _check_clock(clock_error: timedelta) -> Iterator[Finding]:
    if abs(clock_error) > MAX_CLOCK_ERROR:
        hours = round(abs(clock_error) / timedelta(hours=1))
        direction = "ahead" if clock_error > timedelta() else "behind"
        yield note(
            "clock",
            f"this machine's clock is {hours} hours {direction}: reports get wrong dates, and "
            "logins and Vertex AI fail",
            shell_commands.set_clock(),
        )
