"""The providers of one program, and the run limiter and quota breakers that they share."""

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from gemini_cli_mcp.errors import GeminiMcpError, NotSignedIn
from gemini_cli_mcp.process import child
from gemini_cli_mcp.providers.antigravity.binary import find_agy
from gemini_cli_mcp.providers.base import GroundingOptions, Provider
from gemini_cli_mcp.providers.gemini.binary import find_gemini
from gemini_cli_mcp.providers.gemini.sign_ins import is_cli_variable, is_signed_in
from gemini_cli_mcp.providers.quota_breaker import QuotaBreakers
from gemini_cli_mcp.providers.run_limiter import RunLimiter
from gemini_cli_mcp.settings.engines import FAMILY_BY_PROVIDER, Family
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.workspace import Workspace

if TYPE_CHECKING:
    from gemini_cli_mcp.providers.gemini.process_pools import ProcessPools
    from gemini_cli_mcp.providers.gemini.provider import GeminiCliProvider

API_KEY_VARIABLES = ("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI")
"""The provider `api` needs one of these."""


class ProviderRegistry:
    """Creates providers, importing each only when needed."""

    def __init__(
        self,
        settings: Settings,
        workspace: Workspace,
        environ: Mapping[str, str],
        *,
        keeps_processes: bool = False,
        is_one_shot: bool = False,
    ) -> None:
        """With `keeps_processes`, the program may keep processes of the gemini CLI.

        `is_one_shot`: the program ends after one call.
        """
        self._settings = settings
        self._workspace = workspace
        self._environ = without_account_keys(settings, environ)
        self._keeps_processes = keeps_processes and bool(settings.ready_count or settings.warm)
        max_ready = settings.ready_count if self._keeps_processes else 0
        self.limiter = RunLimiter(settings.concurrency, settings.queue, max_ready)
        self.breakers = QuotaBreakers(is_one_shot=is_one_shot)
        self._gemini_cli_providers: dict[frozenset[tuple[str, str]], GeminiCliProvider] = {}

    @cached_property
    def configured(self) -> list[Provider]:
        """The providers listed in GEMINI_MCP_PROVIDERS, in that order."""
        return [
            self.create(FAMILY_BY_PROVIDER[name], self._environ)
            for name in self._settings.providers
        ]

    @cached_property
    def pools(self) -> "ProcessPools | None":
        """The processes of the gemini CLI that are kept for all its providers, if any are."""
        if not self._keeps_processes:
            return None
        from gemini_cli_mcp.providers.gemini.acp_pool import AcpPool
        from gemini_cli_mcp.providers.gemini.process_pools import ProcessPools
        from gemini_cli_mcp.providers.gemini.ready_pool import ReadyPool

        return ProcessPools(
            ReadyPool(self._settings, self.limiter), AcpPool(self._settings, self.limiter)
        )

    def create(self, family: Family, environ: Mapping[str, str]) -> Provider:
        """Return the provider of a family with this environment."""
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
                return self._gemini_cli_provider(environ)

    def _gemini_cli_provider(self, environ: Mapping[str, str]) -> "GeminiCliProvider":
        """Return the one provider with this environment, so that all tools share its processes."""
        from gemini_cli_mcp.providers.gemini.provider import GeminiCliProvider

        variables = frozenset(environ.items())
        if variables not in self._gemini_cli_providers:
            self._gemini_cli_providers[variables] = GeminiCliProvider(
                self._settings, self._workspace, environ, self.limiter, self.breakers, self.pools
            )
        return self._gemini_cli_providers[variables]

    @property
    def has_ready_process(self) -> bool:
        """Whether a process that was started ahead waits for its prompt."""
        return self.pools is not None and self.pools.ready.has_process

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

    async def run_search_pools(self) -> None:
        """Keep processes of the gemini CLI until cancelled; at first for research runs."""
        if self.pools:
            is_used = self._settings.providers[0] == "gemini"
            provider = self._gemini_cli_provider(self._environ)
            await self.pools.run(provider.search_kind if is_used else None)

    async def run_engine_pools(self, provider: Provider | None, options: GroundingOptions) -> None:
        """Keep processes of the gemini CLI until cancelled; at first for this provider's engine."""
        from gemini_cli_mcp.providers.gemini.provider import GeminiCliProvider

        if self.pools:
            is_used = isinstance(provider, GeminiCliProvider)
            await self.pools.run(provider.grounded_kind(options) if is_used else None)


def without_account_keys(settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the variables that hold the keys of web_search accounts."""
    hidden = {name for name in settings.engines.key_variables if not is_cli_variable(name)}
    return {name: value for name, value in environ.items() if name not in hidden}


def cli_argv(provider: str, settings: Settings, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command that starts the provider's official CLI."""
    if provider == "antigravity":
        return find_agy(settings.agy_path, environ).argv
    return find_gemini(settings.cli_path, environ).argv
