"""Finding the CLI where people have it, and knowing it for what it is."""

import shutil
import subprocess
from pathlib import Path

import pytest

from gemini_cli_mcp.errors import CliNotFound
from gemini_cli_mcp.providers.gemini.binary import find_gemini
from tests.support.binaries import install_official_cli, make_executable


def test_path_comes_first(tmp_path: Path) -> None:
    expected = make_executable(tmp_path / "on-path/gemini")
    make_executable(tmp_path / ".volta/bin/gemini")

    found = find_gemini("gemini", {"PATH": str(expected.parent), "HOME": str(tmp_path)})

    assert (found.path, found.is_official) == (expected, False)


@pytest.mark.parametrize(
    "place",
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
def test_places_that_desktop_apps_miss_are_looked_at(tmp_path: Path, place: str) -> None:
    expected = make_executable(tmp_path / place / "gemini-test")

    assert find_gemini("gemini-test", {"PATH": "/usr/bin", "HOME": str(tmp_path)}).path == expected


def test_of_several_node_versions_the_newest_counts(tmp_path: Path) -> None:
    for version in ("v9.9.9", "v22.10.0", "v22.9.0"):
        make_executable(tmp_path / f".nvm/versions/node/{version}/bin/gemini-test")

    found = find_gemini("gemini-test", {"PATH": "", "HOME": str(tmp_path)})

    assert "v22.10.0" in str(found.path)


def test_a_managers_own_variable_counts(tmp_path: Path) -> None:
    expected = make_executable(tmp_path / "elsewhere/bin/gemini-test")

    found = find_gemini(
        "gemini-test", {"PATH": "", "HOME": "/nowhere", "VOLTA_HOME": str(tmp_path / "elsewhere")}
    )

    assert found.path == expected


def test_an_official_cli_is_recognised_by_its_package(tmp_path: Path) -> None:
    found = find_gemini(str(install_official_cli(tmp_path, "0.61.0")), {})

    assert (found.is_official, found.version) == (True, "0.61.0")


@pytest.mark.parametrize("version", ["0.39.0", "0.9.9", "0.39.0-preview.1"])
def test_an_old_official_cli_is_refused_with_an_upgrade(tmp_path: Path, version: str) -> None:
    with pytest.raises(CliNotFound, match=r"too old: 0\.39\.1") as caught:
        find_gemini(str(install_official_cli(tmp_path, version)), {})

    assert "@google/gemini-cli@latest" in caught.value.next_step


@pytest.mark.parametrize("version", ["0.39.1", "0.61.0-nightly.20260801", "1.0"])
def test_a_new_enough_one_is_taken(tmp_path: Path, version: str) -> None:
    assert find_gemini(str(install_official_cli(tmp_path, version)), {}).version == version


@pytest.mark.parametrize("path", ["/nowhere/gemini", "~no-such-user/gemini", "/" + "x" * 5000])
def test_a_path_without_a_file_is_named(path: str) -> None:
    with pytest.raises(CliNotFound, match="does not exist or is not a regular file"):
        find_gemini(path, {})


def test_a_file_that_is_not_executable_is_named(tmp_path: Path) -> None:
    (tmp_path / "gemini").write_text("")

    with pytest.raises(CliNotFound, match="not executable"):
        find_gemini(str(tmp_path / "gemini"), {})


def test_a_name_that_is_nowhere_is_named(tmp_path: Path) -> None:
    with pytest.raises(CliNotFound, match="`no-such-gemini`"):
        find_gemini("no-such-gemini", {"PATH": "/usr/bin", "HOME": str(tmp_path)})


SHIM = """
const shim = require(process.argv[1] + "/npm/node_modules/cmd-shim");
shim(process.argv[2], process.argv[3]).catch((error) => { console.error(error); process.exit(1); });
"""


@pytest.mark.skipif(not shutil.which("npm"), reason="npm writes the shims")
@pytest.mark.parametrize("node", [True, False])
def test_npms_shims_on_windows_are_seen_through(tmp_path: Path, node: bool) -> None:
    script = install_official_cli(tmp_path / "npm", "0.61.0").resolve()
    listed = ["npm", "root", "--global"]
    modules = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.strip()
    shim = tmp_path / "npm" / "gemini"
    subprocess.run(["node", "-e", SHIM, modules, script, shim], check=True)
    beside = tmp_path / "npm" / "node.exe"
    if node:
        beside.touch()

    found = find_gemini(str(shim.with_suffix(".cmd")), {"PATH": ""})

    assert found.version == "0.61.0"
    assert found.argv[0] == (str(beside) if node else "node")
    assert Path(found.argv[1]).resolve() == script


def test_a_batch_file_that_is_no_shim_is_somebody_elses(tmp_path: Path) -> None:
    path = make_executable(tmp_path / "gemini.cmd")

    found = find_gemini(str(path), {"PATH": ""})

    assert (found.is_official, found.argv) == (False, (str(path),))
