"""Finding the gemini CLI and recognizing official installations."""

import shutil
import subprocess
from pathlib import Path

import pytest

from gemini_cli_mcp.errors import CliNotFound
from gemini_cli_mcp.providers.gemini.binary import find_gemini
from tests.support.binaries import install_official_cli, make_executable
from tests.support.matrix import needs_posix


@needs_posix
def test_path_takes_precedence(tmp_path: Path) -> None:
    expected = make_executable(tmp_path / "on-path/gemini")
    make_executable(tmp_path / ".volta/bin/gemini")

    binary = find_gemini("gemini", {"PATH": str(expected.parent), "HOME": str(tmp_path)})

    assert (binary.path, binary.is_official) == (expected, False)


@pytest.mark.parametrize(
    "folder",
    [
        ".npm-global/bin",
        ".local/bin",
        ".volta/bin",
        ".local/share/pnpm",
        "Library/pnpm",
        ".bun/bin",
        ".nvm/versions/node/v22.1.0/bin",
        ".local/share/fnm/node-versions/v20.9.0/installation/bin",
        "Library/Application Support/fnm/node-versions/v20.9.0/installation/bin",
    ],
)
@needs_posix
def test_folders_that_desktop_apps_miss_are_searched(tmp_path: Path, folder: str) -> None:
    expected = make_executable(tmp_path / folder / "gemini-test")

    assert find_gemini("gemini-test", {"PATH": "/usr/bin", "HOME": str(tmp_path)}).path == expected


@needs_posix
def test_the_newest_of_several_node_versions_is_used(tmp_path: Path) -> None:
    for version in ("v9.9.9", "v22.10.0", "v22.9.0"):
        make_executable(tmp_path / f".nvm/versions/node/{version}/bin/gemini-test")

    binary = find_gemini("gemini-test", {"PATH": "", "HOME": str(tmp_path)})

    assert "v22.10.0" in str(binary.path)


@needs_posix
def test_the_variable_of_a_version_manager_is_respected(tmp_path: Path) -> None:
    expected = make_executable(tmp_path / "elsewhere/bin/gemini-test")

    binary = find_gemini(
        "gemini-test", {"PATH": "", "HOME": "/nowhere", "VOLTA_HOME": str(tmp_path / "elsewhere")}
    )

    assert binary.path == expected


@needs_posix
def test_an_official_cli_is_recognised_by_its_package(tmp_path: Path) -> None:
    binary = find_gemini(str(install_official_cli(tmp_path, "0.61.0")), {})

    assert (binary.is_official, binary.version) == (True, "0.61.0")


@pytest.mark.parametrize("version", ["0.39.0", "0.9.9", "0.39.0-preview.1"])
@needs_posix
def test_an_outdated_official_cli_is_rejected_with_an_upgrade_hint(
    tmp_path: Path, version: str
) -> None:
    with pytest.raises(CliNotFound, match=r"too old: 0\.39\.1") as caught:
        find_gemini(str(install_official_cli(tmp_path, version)), {})

    assert "@google/gemini-cli@latest" in caught.value.next_step


@pytest.mark.parametrize("version", ["0.39.1", "0.61.0-nightly.20260801", "1.0"])
@needs_posix
def test_a_recent_official_cli_is_accepted(tmp_path: Path, version: str) -> None:
    assert find_gemini(str(install_official_cli(tmp_path, version)), {}).version == version


@pytest.mark.parametrize("path", ["/nowhere/gemini", "~no-such-user/gemini", "/" + "x" * 5000])
def test_a_path_without_a_file_is_reported(path: str) -> None:
    with pytest.raises(CliNotFound, match="does not exist or is not a regular file"):
        find_gemini(path, {})


@needs_posix
def test_a_file_that_is_not_executable_is_reported(tmp_path: Path) -> None:
    (tmp_path / "gemini").write_text("")

    with pytest.raises(CliNotFound, match="not executable"):
        find_gemini(str(tmp_path / "gemini"), {})


def test_a_name_that_cannot_be_found_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CliNotFound, match="`no-such-gemini`"):
        find_gemini("no-such-gemini", {"PATH": "/usr/bin", "HOME": str(tmp_path)})


WRITE_SHIM = """
const shim = require(process.argv[1] + "/npm/node_modules/cmd-shim");
shim(process.argv[2], process.argv[3]).catch((error) => { console.error(error); process.exit(1); });
"""


@pytest.mark.skipif(not shutil.which("npm"), reason="npm is needed to write the shims")
@pytest.mark.parametrize("has_node", [True, False])
@needs_posix
def test_npms_windows_shims_are_resolved(tmp_path: Path, has_node: bool) -> None:
    script = install_official_cli(tmp_path / "npm", "0.61.0").resolve()
    script.write_text("#!/usr/bin/env node\n")
    npm_root = ["npm", "root", "--global"]
    modules = subprocess.run(npm_root, capture_output=True, text=True, check=True).stdout.strip()
    shim = tmp_path / "npm" / "gemini"
    subprocess.run(["node", "-e", WRITE_SHIM, modules, script, shim], check=True)
    sibling = tmp_path / "npm/node"  # called node.exe on Windows
    if has_node:
        make_executable(sibling)

    node = make_executable(tmp_path / "bin/node")

    binary = find_gemini(str(shim.with_suffix(".cmd")), {"PATH": str(node.parent)})

    assert binary.version == "0.61.0"
    assert binary.argv[0] == str(sibling if has_node else node)
    assert Path(binary.argv[1]).resolve() == script


@pytest.mark.parametrize("suffix", [".cmd", ".bat"])
def test_a_batch_file_that_is_not_a_shim_is_refused(tmp_path: Path, suffix: str) -> None:
    path = make_executable(tmp_path / f"gemini{suffix}")

    with pytest.raises(CliNotFound, match="batch file other than those that npm and pnpm write"):
        find_gemini(str(path), {"PATH": ""})
