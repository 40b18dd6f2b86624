"""How this program was installed, and the commands that change that."""

import json
import shlex
import sys
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import cast
from urllib.parse import unquote, urlsplit

from gemini_cli_mcp.json_values import object_or_empty

DISTRIBUTION = "gemini-cli-research-mcp"

_UV_CACHE_FOLDERS = {"archive-v0", "environments-v2", "builds-v0"}


def is_temporary() -> bool:
    """Return whether this program runs from uv's cache (`uvx`), which uv may clean up."""
    return bool(_UV_CACHE_FOLDERS & set(Path(sys.prefix).parts))


def permanent_install_command() -> str:
    """Return a command that installs this program for good."""
    return f"uv tool install {shlex.quote(_source())}"


def extra_install_command(extra: str) -> str:
    """Return a command that adds an optional dependency to this installation."""
    if is_temporary() or find_spec("pip") is None:  # uv's environments have no pip
        return f"uv tool install --force {shlex.quote(f'{_source()}[{extra}]')}"
    return f"{shlex.quote(sys.executable)} -m pip install '{DISTRIBUTION}[{extra}]'"


def _source() -> str:
    """Return where this was installed from: a folder or file of this machine, or the index."""
    try:
        text = distribution(DISTRIBUTION).read_text("direct_url.json") or "{}"
        url = object_or_empty(cast("object", json.loads(text))).get("url")
    except (PackageNotFoundError, OSError, ValueError):
        return DISTRIBUTION
    parts = urlsplit(str(url))
    return unquote(parts.path) if parts.scheme == "file" else DISTRIBUTION
