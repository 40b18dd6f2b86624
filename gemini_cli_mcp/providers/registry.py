"""The providers of one program, and what they share: the places for their runs."""

from collections.abc import Mapping, Sequence
from functools import cached_property

from gemini_cli_mcp.errors import GeminiMcpError, NotSignedIn
from gemini_cli_mcp.process import child
from gemini_cli_mcp.providers.antigravity.binary import find_agy
from gemini_cli_mcp.providers.base import Grounding, Provider
from gemini_cli_mcp.providers.gemini.binary import find_gemini
from gemini_cli_mcp.providers.gemini.home import is_its_own, is_signed_in
from gemini_cli_mcp.providers.quota_breaker import Quotas
from gemini_cli_mcp.providers.run_limiter import Places
from gemini_cli_mcp.settings.engines_file import OF_PROVIDER, Family
from gemini_cli_mcp.settings.env import Config
from gemini_cli_mcp.workspace import Workspace

KEYS = ("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI")
"""One of them is what the provider `api` needs."""


class Providers:
    """Each imported only if it is needed. With `warm`, processes can be kept ready."""

    def __init__(
        self,
        config: Config,
        workspace: Workspace,
        environ: Mapping[str, str],
        *,
        warm: bool = False,
    ) -> None:
        self._config = config
        self._workspace = workspace
        self._environ = without_foreign_keys(config, environ)
        self._warm = warm and config.warm > 0
        self.places = Places(config.concurrency, config.queue)
        self.quotas = Quotas()

    @cached_property
    def listed(self) -> list[Provider]:
        """Those that GEMINI_MCP_PROVIDERS lists, in its order."""
        return [
            self.of_family(OF_PROVIDER[name], self._environ, warm=self._warm)
            for name in self._config.providers
        ]

    def of_family(
        self, family: Family, environ: Mapping[str, str], *, warm: bool | Grounding = False
    ) -> Provider:
        """The provider of a family, with this environment."""
        match family:
            case "gemini-api":
                from gemini_cli_mcp.providers.gemini_api import GeminiApi

                return GeminiApi(self._config, environ, self.quotas)
            case "antigravity":
                from gemini_cli_mcp.providers.antigravity.provider import AntigravityCli

                return AntigravityCli(
                    self._config, self._workspace, environ, self.places, self.quotas
                )
            case _:
                from gemini_cli_mcp.providers.gemini.provider import GeminiCli

                return GeminiCli(
                    self._config, self._workspace, environ, self.places, self.quotas, warm=warm
                )

    @property
    def processes(self) -> int:
        """How many CLI processes live."""
        return child.running()

    def problem(self) -> GeminiMcpError | None:
        """Why none of the listed ones can be used now; None if one can."""
        problems: list[GeminiMcpError] = []
        for name in self._config.providers:
            try:
                self._check(OF_PROVIDER[name])
            except GeminiMcpError as error:
                problems.append(error)
            else:
                return None
        return problems[0]

    def _check(self, family: Family) -> None:
        """Raise what a search with this family would meet before it begins."""
        if family == "gemini-cli":
            binary = find_gemini(self._config.cli_path, self._environ)
            # A wrapper or a stub may need none.
            if binary.official and not is_signed_in(self._environ):
                raise NotSignedIn("gemini is not signed in.")
        elif family == "antigravity":
            find_agy(self._config.agy_path, self._environ)
        elif not any(map(self._environ.get, KEYS)):
            raise NotSignedIn("The provider `api` has no key.")

    async def stay_warm(self, providers: Sequence[Provider] | None = None) -> None:
        """Keep ready what these can keep ready, or else the listed ones, until cancelled."""
        from gemini_cli_mcp.providers.gemini.provider import GeminiCli

        for provider in self.listed if providers is None else providers:
            if isinstance(provider, GeminiCli):
                await provider.stay_warm()


def without_foreign_keys(config: Config, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment less the keys of web_search's accounts, whatever their variables' names."""
    hidden = {name for name in config.engines.key_variables if not is_its_own(name)}
    return {name: value for name, value in environ.items() if name not in hidden}


def find_binary(provider: str, config: Config, environ: Mapping[str, str]) -> tuple[str, ...]:
    """How the official CLI of a provider that has one is started."""
    if provider == "antigravity":
        return (str(find_agy(config.agy_path, environ)),)
    return find_gemini(config.cli_path, environ).argv
