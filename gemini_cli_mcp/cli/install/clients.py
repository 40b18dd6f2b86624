"""The MCP clients that `install` can configure: where they store servers, and in which format.

Formats as documented by each client in 2026-11; docs/commands.md lists them for users.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gemini_cli_mcp.platforms.folders import home_folder


@dataclass(frozen=True)
class ClientConfig:
    """Where an MCP client stores its servers, and in which format."""

    title: str
    folders: Mapping[str, str]
    """Folder by platform, or for `any`: a `$VARIABLE`, or a path relative to the home folder."""
    file: str
    next_step: str
    project_file: str | None = None
    """The same in a project, relative to its folder."""
    project_step: str = ""
    """What the user has to do for a server in a project's file, in addition."""
    key: str = "mcpServers"
    extra_fields: Mapping[str, str] = field(default_factory=dict[str, str])
    """Fields of an entry in addition to command, arguments and environment."""
    store_packages: str = ""
    """Names of the package from Microsoft's store, whose app sees a roaming folder of its own."""
    inherits_terminal: bool = False
    """Whether servers get the variables of the terminal in which the client was started."""

    def user_files(self, environ: Mapping[str, str], platform: str = sys.platform) -> list[Path]:
        """Return the files for all projects of this user; a store app has one of its own."""
        store_files: list[Path] = []
        if platform == "win32" and self.store_packages:
            home = home_folder(environ, platform)
            local = Path(environ.get("LOCALAPPDATA") or home / "AppData/Local")
            packages = sorted(local.glob(f"Packages/{self.store_packages}"))
            store_files = [package / "LocalCache/Roaming" / self.file for package in packages]
        return [self.user_file(environ, platform), *store_files]

    def user_file(self, environ: Mapping[str, str], platform: str = sys.platform) -> Path:
        """Return the file for all projects of this user on this platform."""
        home = home_folder(environ, platform)
        folder = self.folders.get("any", self.folders.get(platform, self.folders.get("linux", "")))
        if folder.startswith("$"):
            variable, _, subfolder = folder.partition("/")
            folder = environ.get(variable[1:], "")
            if not Path(folder).is_absolute():  # the XDG specification says to ignore these
                folder = _DEFAULT_FOLDERS.get(variable, "")
            return home / folder / subfolder / self.file
        return home / folder / self.file


_APP_CONFIG_FOLDERS = {
    "darwin": "Library/Application Support",
    "win32": "$APPDATA",
    "linux": "$XDG_CONFIG_HOME",
}
_ZED_FOLDERS = {"darwin": ".config/zed", "win32": "$APPDATA/Zed", "linux": "$XDG_CONFIG_HOME/zed"}
_DEFAULT_FOLDERS = {"$APPDATA": "AppData/Roaming", "$XDG_CONFIG_HOME": ".config"}
_VSCODE_STEP = "run “MCP: List Servers” in {}, start the server and confirm that you trust it."

CLIENTS: dict[str, ClientConfig] = {
    "claude-desktop": ClientConfig(
        "Claude Desktop",
        _APP_CONFIG_FOLDERS,
        "Claude/claude_desktop_config.json",
        "quit Claude Desktop completely, start it again, and ask something that needs the web.",
        store_packages="Claude_*",
    ),
    "claude-code": ClientConfig(
        "Claude Code",
        {"any": "$CLAUDE_CONFIG_DIR"},
        ".claude.json",
        "start a new session with `claude`; `/mcp` lists the server.",
        ".mcp.json",
        "Claude Code asks once whether to use the servers of this project.",
        extra_fields={"type": "stdio"},
        inherits_terminal=True,
    ),
    "cursor": ClientConfig(
        "Cursor",
        {"any": ""},
        ".cursor/mcp.json",
        "restart Cursor; if the server is off in Cursor's MCP settings, switch it on.",
        ".cursor/mcp.json",
    ),
    "vscode": ClientConfig(
        "VS Code",
        _APP_CONFIG_FOLDERS,
        "Code/User/mcp.json",
        _VSCODE_STEP.format("VS Code"),
        ".vscode/mcp.json",
        key="servers",
        extra_fields={"type": "stdio"},
    ),
    "vscode-insiders": ClientConfig(
        "VS Code Insiders",
        _APP_CONFIG_FOLDERS,
        "Code - Insiders/User/mcp.json",
        _VSCODE_STEP.format("VS Code Insiders"),
        ".vscode/mcp.json",
        key="servers",
        extra_fields={"type": "stdio"},
    ),
    "windsurf": ClientConfig(
        "Windsurf",
        {"any": ""},
        ".codeium/windsurf/mcp_config.json",
        "press Refresh in Windsurf's MCP panel, or restart Windsurf.",
    ),
    "zed": ClientConfig(
        "Zed",
        _ZED_FOLDERS,
        "settings.json",
        "Zed starts it at once; Settings > AI > MCP Servers shows a green dot.",
        ".zed/settings.json",
        "Zed applies it after you trust the project.",
        key="context_servers",
    ),
}
