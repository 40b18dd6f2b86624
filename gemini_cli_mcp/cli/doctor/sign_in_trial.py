"""Try the sign-in: a key with a request to the API, anything else with a run of the CLI itself.

Sign-in files are the CLI's own business: they are never read here, so only a run of the CLI shows
whether they work.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio

from gemini_cli_mcp.call_context import CallContext
from gemini_cli_mcp.cli.doctor.findings import Finding, note, ok, problem, unproven_note
from gemini_cli_mcp.cli.doctor.models_request import Inconclusive, RouteFailed, request_models
from gemini_cli_mcp.cli.doctor.sign_in_checks import SIGN_IN_OPTIONS, set_key_command
from gemini_cli_mcp.errors import GeminiMcpError, ModelNotFound, NotSignedIn, RateLimited
from gemini_cli_mcp.execution_errors import ConnectionFailed
from gemini_cli_mcp.platforms import shell_commands
from gemini_cli_mcp.providers.gemini.api_route import (
    ApiRoute,
    find_python_route,
    find_route,
    without_password,
)
from gemini_cli_mcp.providers.gemini.binary import GeminiBinary
from gemini_cli_mcp.providers.gemini.home import is_model_alias
from gemini_cli_mcp.providers.gemini.sign_ins import available_sign_ins
from gemini_cli_mcp.providers.registry import ProviderRegistry
from gemini_cli_mcp.sanitize import redact
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.sign_in_errors import SignInMissing
from gemini_cli_mcp.workspace import Workspace

TRIAL_PROMPT = "Reply with the single word OK. Do not search."
TRIAL_MODEL = "gemini-2.5-flash"
"""A full name: for an alias the CLI first asks another model, and retries that one for minutes."""
RUN_SHARE = 0.8
"""Share of the time limit for a run; the rest is for a request that shows why it failed."""
CERTIFICATE_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS")
"""Variables that only Python, or only Node, reads."""
MAX_CLOCK_ERROR = timedelta(hours=1)
TOPIC = "sign-in"


@dataclass(frozen=True)
class KeyTrial:
    """What a request with the key has shown."""

    findings: tuple[Finding, ...] = ()
    reason: str = ""
    """Without findings: why the request shows nothing."""


@dataclass(frozen=True)
class RunTrial:
    """What a run of the CLI has shown."""

    finding: Finding
    may_be_network: bool = False
    """Whether the CLI reports a missing connection in the same way."""


class SignInTrial:
    """Tries the sign-in that a search would use; one time limit applies to all steps together."""

    def __init__(self, settings: Settings, environ: Mapping[str, str]) -> None:
        self._settings = settings
        self._environ = environ
        self._seconds = settings.limits.sign_in_timeout
        self._deadline: float | None = None
        self._key_trial: KeyTrial | None = None
        self._sign_ins = available_sign_ins(environ)
        self._route = find_route(environ, self._sign_ins[0].auth_type)

    async def try_sign_in(self, binary: GeminiBinary, sign_in: str) -> list[Finding]:
        """Try it with the quickest proof; `sign_in` is its description."""
        reason = ""
        if binary.is_official and self._environ.get("GEMINI_API_KEY"):
            trial = await self._request_with_key(self._route, self._remaining(), from_python=False)
            self._key_trial = trial
            if trial.findings:
                return list(trial.findings)
            reason = trial.reason
        run = await self._try_run(binary, sign_in)
        finding = run.finding
        if reason and finding.status == "problem":
            finding = replace(finding, message=f"{finding.message} ({reason})")
        if not binary.is_official:
            return [finding]
        try:
            with anyio.fail_after(self._remaining()):
                response = await request_models(self._route, self._environ, self._seconds)
        except RouteFailed as error:
            return [_unreachable(self._route, str(error)) if run.may_be_network else finding]
        except (Inconclusive, TimeoutError):
            return [finding]
        return [finding, *_check_clock(response.clock_error)]

    async def try_key_of_api(self) -> KeyTrial:
        """Try GEMINI_API_KEY as the provider `api` uses it."""
        route = find_python_route(self._environ)
        own_certificates = any(self._environ.get(name) for name in CERTIFICATE_VARIABLES)
        if self._key_trial and route == self._route and not own_certificates:
            # The CLI's request was the same, and the clock has been reported.
            return replace(self._key_trial, findings=self._key_trial.findings[:1])
        return await self._request_with_key(route, self._seconds, from_python=True)

    async def _request_with_key(
        self, route: ApiRoute, seconds: float, *, from_python: bool
    ) -> KeyTrial:
        key = self._environ["GEMINI_API_KEY"].strip()
        try:
            with anyio.fail_after(seconds):
                response = await request_models(
                    route, self._environ, seconds, key, from_python=from_python
                )
        except Inconclusive as error:
            return KeyTrial(reason=str(error))
        except (RouteFailed, TimeoutError) as error:
            reason = str(error) or f"no answer within {seconds:.2g} s"
            return KeyTrial((_unreachable(route, reason),))
        match response.status:
            case 200 if response.has_models:
                finding = ok(TOPIC, f"GEMINI_API_KEY (not shown) was accepted by {route}")
            case 429:
                message = f"GEMINI_API_KEY: {route} limits requests: {response.message}"
                finding = unproven_note(TOPIC, message)
            case 400 | 401:
                message = f"GEMINI_API_KEY was refused by {route}: {response.message}"
                finding = problem(TOPIC, message, set_key_command())
            case 403:
                message = f"access was denied (403) by {route}: {response.message}"
                finding = problem(TOPIC, message, set_key_command())
            case status if status >= 500:
                message = f"{route} is failing ({status}): {response.message}"
                finding = problem(TOPIC, message, "gemini-cli-mcp doctor  # try again later")
            case status:  # a gateway without this endpoint, or the login page of a network
                return KeyTrial(reason=f"{route} returned no list of models (status {status})")
        return KeyTrial((finding, *_check_clock(response.clock_error)))

    async def _try_run(self, binary: GeminiBinary, sign_in: str) -> RunTrial:
        """Ask the CLI for one word."""
        settings = self._settings
        is_own_model = settings.model is not None and not is_model_alias(settings.model)
        with TemporaryDirectory() as folder:
            changes = {
                "config_dir": Path(folder) / "config",
                "model": settings.model if is_own_model else TRIAL_MODEL,
                "cli_path": str(binary.path),
            }
            settings = settings.model_copy(update=changes)
            workspace = Workspace(settings.config_dir)
            registry = ProviderRegistry(settings, workspace, self._environ)
            provider = registry.create("gemini-cli", self._environ)
            seconds = max(0.0, self._remaining() - (1 - RUN_SHARE) * self._seconds)
            try:
                with anyio.fail_after(seconds):
                    await provider.ask(TRIAL_PROMPT, CallContext())
            except TimeoutError:
                message = f"{sign_in}: gemini gave no answer within {seconds:.2g} s"
                fix = _network_fix(self._route)
                return RunTrial(problem(TOPIC, message, fix), may_be_network=True)
            except ModelNotFound as error:
                if is_own_model:
                    return self._describe_failure(error, sign_in)
                # Only an answer to an accepted sign-in can say that.
                return RunTrial(ok(TOPIC, f"{sign_in}: Google accepted it"))
            except GeminiMcpError as error:
                return self._describe_failure(error, sign_in)
            finally:
                workspace.close()
        if binary.is_official:
            return RunTrial(ok(TOPIC, f"{sign_in}: gemini answered a short prompt"))
        return RunTrial(
            ok(
                TOPIC,
                "this CLI answered a short prompt; that says nothing about a key or login of yours",
            )
        )

    def _describe_failure(self, error: GeminiMcpError, sign_in: str) -> RunTrial:
        message = f"{sign_in}: {redact(error.message, self._settings.secrets).rstrip('.')}."
        first, last = self._sign_ins[0], self._sign_ins[-1]
        match error:
            case ConnectionFailed():
                finding = _unreachable(self._route, "gemini could not connect")
                return RunTrial(finding, may_be_network=True)
            case NotSignedIn() if first.auth_type == "vertex-ai":
                return RunTrial(problem(TOPIC, message, "gcloud auth application-default login"))
            case NotSignedIn():
                # The options are news for people whose login stopped working, or who have none.
                options = "" if self._environ.get("GEMINI_API_KEY") else f" {SIGN_IN_OPTIONS}"
                finding = problem(TOPIC, message + options, set_key_command())
                # Without a network, the CLI does not find its login either.
                is_login = isinstance(error, SignInMissing) and last.login_file is not None
                return RunTrial(finding, may_be_network=is_login)
            case RateLimited():
                return RunTrial(unproven_note(TOPIC, message))
            case _:
                return RunTrial(problem(TOPIC, message, error.next_step, is_command=False))

    def _remaining(self) -> float:
        """Return the rest of the time limit, which starts with the first step."""
        if self._deadline is None:
            self._deadline = anyio.current_time() + self._seconds
        return max(0.0, self._deadline - anyio.current_time())


def _unreachable(route: ApiRoute, reason: str) -> Finding:
    return problem(TOPIC, f"no connection to {route}: {reason}", _network_fix(route))


def _network_fix(route: ApiRoute) -> str:
    if route.proxy_variable:
        return f"{shell_commands.unset_variables([route.proxy_variable])}  # or correct it"
    command = shell_commands.request_headers(without_password(route.url))
    return f"{command}  # check the network until this works"


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
