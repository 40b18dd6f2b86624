"""Commands that fix a problem, in the words of the platform's own shell (PowerShell on Windows)."""

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

NODE_DOWNLOADS = "https://nodejs.org/en/download"
PACKAGE_MANAGERS = {
    "apt-get": "sudo apt-get install nodejs",
    "dnf": "sudo dnf install nodejs",
    "pacman": "sudo pacman -S nodejs",
    "zypper": "sudo zypper install nodejs",
    "apk": "sudo apk add nodejs",
}
"""How Linux distributions install Node."""
PACKAGE_MANAGER_PATH = "/usr/bin:/bin:/usr/sbin:/sbin"


def set_variable(name: str, value: str = "...", platform: str = sys.platform) -> str:
    """Set a variable in this terminal; `...` is for the user to replace."""
    if platform == "win32":
        return f'$env:{name} = "{value}"'
    return f"export {name}={value}"


def unset_variables(names: Sequence[str], platform: str = sys.platform) -> str:
    """Unset variables in this terminal."""
    if platform == "win32":
        return "Remove-Item " + ", ".join(f"Env:{name}" for name in names)
    return f"unset {' '.join(names)}"


def prepend_to_path(folder: str, platform: str = sys.platform) -> str:
    """Put a folder ahead of the others on PATH."""
    if platform == "win32":
        return f'$env:PATH = "{folder};$env:PATH"'
    return f'export PATH="{folder}:$PATH"'


def make_private(path: Path, platform: str = sys.platform) -> str:
    """Take a folder's permissions away from other users."""
    if platform == "win32":
        return f'icacls "{path}" /inheritance:r /grant:r "$($env:USERNAME):(OI)(CI)F"'
    return f"chmod 700 {shlex.quote(str(path))}"


def make_executable(path: str, platform: str = sys.platform) -> str:
    """Allow a file to be run."""
    if platform == "win32":
        return f'Unblock-File "{path}"'
    return f"chmod +x {shlex.quote(path)}"


def kill(pids: Sequence[int], platform: str = sys.platform) -> str:
    """End processes."""
    if platform == "win32":
        return "Stop-Process -Id " + ", ".join(map(str, pids))
    return f"kill {' '.join(map(str, pids))}"


def show_free_space(path: Path, platform: str = sys.platform) -> str:
    """Show how much space is left on the disk of this folder."""
    if platform == "win32":
        return f'Get-PSDrive "{path.drive.rstrip(":") or "C"}"'
    return f"df -h {shlex.quote(str(path))}"


def request_headers(url: str, platform: str = sys.platform) -> str:
    """Show whether a server answers; in PowerShell, `curl` may be an alias of something else."""
    if platform == "win32":
        return f'curl.exe -I "{url}"'
    return f"curl -I {shlex.quote(url)}"


def set_clock(platform: str = sys.platform) -> str:
    """Set the clock from the network."""
    commands = {
        "win32": "w32tm /resync",
        "darwin": "sudo sntp -sS time.apple.com",
    }
    return commands.get(platform, "sudo timedatectl set-ntp true")


def install_node(platform: str = sys.platform, search_path: str = PACKAGE_MANAGER_PATH) -> str:
    """Install Node with the platform's package manager; without one, open the download page."""
    if platform == "win32":
        return "winget install OpenJS.NodeJS.LTS"
    if platform == "darwin":
        return "brew install node"
    installed = (name for name in PACKAGE_MANAGERS if shutil.which(name, path=search_path))
    manager = next(installed, None)
    return PACKAGE_MANAGERS[manager] if manager else f"xdg-open {NODE_DOWNLOADS}"
