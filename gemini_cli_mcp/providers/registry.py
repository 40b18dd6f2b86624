"""The providers of one program, and the run limiter and quota breakers that they share."""

from collections.abc import Mapping, Sequence
from functools import cached_property

import anyio

from gemini_cli_mcp.errors import GeminiMcpError, NotSignedIn
from gemini_cli_mcp.process import child
from gemini_cli_mcp.providers.antigravity.binary import find_agy
from gemini_cli_mcp.providers.base import Provider
from gemini_cli_mcp.providers.gemini.binary import find_gemini
from gemini_cli_mcp.providers.gemini.home import Profile, search_profile
from gemini_cli_mcp.providers.gemini.sign_ins import is_cli_variable, is_signed_in
from gemini_cli_mcp.providers.quota_breaker import QuotaBreakers
from gemini_cli_mcp.providers.run_limiter import RunLimiter
from gemini_cli_mcp.settings.engines import FAMILY_BY_PROVIDER, Family
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.workspace import Workspace

API_KEY_VARIABLES = ("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI")
"""The provider `api` needs one of these."""


class ProviderRegistry:
    """Creates providers, importing each only when needed.

    With `warm`, providers may keep processes ready.
    """

    def __init__(
        self,
        settings: Settings,
        workspace: Workspace,
        environ: Mapping[str, str],
        *,
        warm: bool = False,
        is_one_shot: bool = False,
    ) -> None:
        """`is_one_shot`: the program ends after one call."""
        self._settings = settings
        self._workspace = workspace
        self._environ = without_account_keys(settings, environ)
        self._warm = warm and settings.warm > 0
        self.limiter = RunLimiter(settings.concurrency, settings.queue)
        self.breakers = QuotaBreakers(is_one_shot=is_one_shot)

    @cached_property
    def configured(self) -> list[Provider]:
        """The providers listed in GEMINI_MCP_PROVIDERS, in that order."""
        profile = search_profile(self._settings.model) if self._warm else None
        return [
            self.create(FAMILY_BY_PROVIDER[name], self._environ, profile)
            for name in self._settings.providers
        ]

    def create(
        self, family: Family, environ: Mapping[str, str], pooled_profile: Profile | None = None
    ) -> Provider:
        """Create the provider of a family with this environment.

        With `pooled_profile`, the gemini CLI keeps processes ready for runs with this profile.
        """
        match family:
            case "gemini-api":
                from gemini_cli_mcp.providers.gemini_api import GeminiApiProvider

                return GeminiApiProvider(self._settings, environ, self.breakers)
            case "antigravity":
                from gemini_cli_mcp.providers.antigravity.provider import AntigravityProvider

                return AntigravityProvider(
                    self._settings, self._workspace, environ, self.limiter, self.breakers
                )
            case _:
                from gemini_cli_mcp.providers.gemini.provider import GeminiCliProvider

                return GeminiCliProvider(
                    self._settings,
                    self._workspace,
                    environ,
                    self.limiter,
                    self.breakers,
                    pooled_profile=pooled_profile,
                )

    @property
    def process_count(self) -> int:
        """Number of running CLI processes."""
        return child.running_count()

    def readiness_error(self) -> GeminiMcpError | None:
        """Return why no configured provider is usable, or None if one is."""
        errors: list[GeminiMcpError] = []
        for name in self._settings.providers:
            try:
                self._require_ready(FAMILY_BY_PROVIDER[name])
            except GeminiMcpError as error:
                errors.append(error)
            else:
                return None
        return errors[0]

    def _require_ready(self, family: Family) -> None:
        """Raise the error that a search with this family would fail with before it starts."""
        if family == "gemini-cli":
            binary = find_gemini(self._settings.cli_path, self._environ)
            # A wrapper or a stub may not need a sign-in.
            if binary.is_official and not is_signed_in(self._environ):
                raise NotSignedIn("gemini is not signed in.")
        elif family == "antigravity":
            find_agy(self._settings.agy_path, self._environ)
        elif not any(map(self._environ.get, API_KEY_VARIABLES)):
            raise NotSignedIn("The provider `api` has no API key.")

    async def run_pools(self, providers: Sequence[Provider] | None = None) -> None:
        """Run the ACP pools of these providers (default: the configured ones) until cancelled."""
        from gemini_cli_mcp.providers.gemini.provider import GeminiCliProvider

        async with anyio.create_task_group() as tasks:
            for provider in self.configured if providers is None else providers:
                if isinstance(provider, GeminiCliProvider):
                    tasks.start_soon(provider.run_pool)


def without_account_keys(settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the variables that hold the keys of web_search accounts."""
    hidden = {name for name in settings.engines.key_variables if not is_cli_variable(name)}
    return {name: value for name, value in environ.items() if name not in hidden}


def cli_argv(provider: str, settings: Settings, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command that starts the provider's official CLI."""
    if provider == "antigravity":
        return (str(find_agy(settings.agy_path, environ)),)
    return find_gemini(settings.cli_path, environ).argv
