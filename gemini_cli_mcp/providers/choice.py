"""The providers that GEMINI_MCP_PROVIDERS lists, in its order."""

from collections.abc import Mapping
from pathlib import Path

from gemini_cli_mcp.config import Config
from gemini_cli_mcp.models import Provider
from gemini_cli_mcp.providers import antigravity_binary, gemini_binary
from gemini_cli_mcp.workspace import Workspace


def chosen(config: Config, workspace: Workspace, environ: Mapping[str, str]) -> list[Provider]:
    """Each imported only if it is listed."""
    return [_provider(name, config, workspace, environ) for name in config.providers]


def find_binary(provider: str, config: Config, environ: Mapping[str, str]) -> Path:
    """The official CLI of a provider that has one."""
    if provider == "antigravity":
        return antigravity_binary.find(config.agy_path, environ)
    return gemini_binary.find(config.cli_path, environ).path


def _provider(
    name: str, config: Config, workspace: Workspace, environ: Mapping[str, str]
) -> Provider:
    match name:
        case "api":
            from gemini_cli_mcp.providers.gemini_api import GeminiApi

            return GeminiApi(config, environ)
        case "antigravity":
            from gemini_cli_mcp.providers.antigravity_cli import AntigravityCli

            return AntigravityCli(config, workspace, environ)
        case _:
            from gemini_cli_mcp.providers.gemini_cli import GeminiCli

            return GeminiCli(config, workspace, environ)
