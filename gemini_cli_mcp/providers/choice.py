"""The providers that GEMINI_MCP_PROVIDERS lists, in its order."""

from collections.abc import Mapping
from pathlib import Path

from gemini_cli_mcp.config import Config
from gemini_cli_mcp.engines import OF_PROVIDER, Family
from gemini_cli_mcp.models import Provider
from gemini_cli_mcp.providers import antigravity_binary, gemini_binary, gemini_home
from gemini_cli_mcp.workspace import Workspace


def chosen(config: Config, workspace: Workspace, environ: Mapping[str, str]) -> list[Provider]:
    """Each imported only if it is listed."""
    given = without_foreign_keys(config, environ)
    return [of_family(OF_PROVIDER[name], config, workspace, given) for name in config.providers]


def without_foreign_keys(config: Config, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment less the keys of web_search's accounts, whatever their variables' names."""
    hidden = {name for name in config.engines.key_variables if not gemini_home.is_its_own(name)}
    return {name: value for name, value in environ.items() if name not in hidden}


def find_binary(provider: str, config: Config, environ: Mapping[str, str]) -> Path:
    """The official CLI of a provider that has one."""
    if provider == "antigravity":
        return antigravity_binary.find(config.agy_path, environ)
    return gemini_binary.find(config.cli_path, environ).path


def of_family(
    family: Family, config: Config, workspace: Workspace, environ: Mapping[str, str]
) -> Provider:
    """The provider of a family, with this environment."""
    match family:
        case "gemini-api":
            from gemini_cli_mcp.providers.gemini_api import GeminiApi

            return GeminiApi(config, environ)
        case "antigravity":
            from gemini_cli_mcp.providers.antigravity_cli import AntigravityCli

            return AntigravityCli(config, workspace, environ)
        case _:
            from gemini_cli_mcp.providers.gemini_cli import GeminiCli

            return GeminiCli(config, workspace, environ)
