"""Files that look like programs."""

import json
from pathlib import Path


def make_executable(path: Path) -> Path:
    """A program that does nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def install_official_cli(folder: Path, version: str) -> Path:
    """The `gemini` of an official CLI of this version, as npm lays it out."""
    package = folder / "lib/node_modules/@google/gemini-cli"
    make_executable(package / "bundle/gemini.js")
    (package / "package.json").write_text(json.dumps({"version": version}))
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/gemini").symlink_to(package / "bundle/gemini.js")
    return folder / "bin/gemini"
