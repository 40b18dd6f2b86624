"""Create fake executables."""

import json
from pathlib import Path


def make_executable(path: Path) -> Path:
    """Create a program that does nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def install_official_cli(folder: Path, version: str) -> Path:
    """Create the npm layout of an official CLI of this version; return the path of `gemini`."""
    package = folder / "lib/node_modules/@google/gemini-cli"
    make_executable(package / "bundle/gemini.js")
    (package / "package.json").write_text(json.dumps({"version": version}))
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/gemini").symlink_to(package / "bundle/gemini.js")
    return folder / "bin/gemini"
