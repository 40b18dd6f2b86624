"""Every code block in README and docs works as written, or states what it needs."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gemini_cli_mcp import __version__
from gemini_cli_mcp.settings.engines import default_engines
from gemini_cli_mcp.settings.engines_file import load_engines_file
from scripts.newcomer import readme_commands
from tests.support import ROOT, STUB, TOOLS, Stub
from tests.support.doc_blocks import BLOCKS, PAGES, Block, blocks

PARSE_YAML = "require('yaml').parse(require('fs').readFileSync(0, 'utf8'))"


@pytest.mark.parametrize("block", blocks("sh"), ids=str)
def test_commands_run_as_written(stub: Stub, block: Block) -> None:
    # The tests are already running, .ci/run calls check and smoke, and the others take minutes.
    slow_scripts = r"^scripts/(?:test-long|test|check|smoke|soak|package|coverage|bench|newcomer)\b"
    text = re.sub(slow_scripts, r"test -x \g<0> #", block.text, flags=re.M)
    text = text.replace(" report.md", f" {stub.home}/report.md")
    environ = {
        **stub.environ,
        "PATH": f"{ROOT}/.venv/bin{os.pathsep}{os.environ['PATH']}",
        "GEMINI_MCP_CLI_PATH": str(STUB),
    }
    options = ["-n"] if block.needs else ["-euo", "pipefail"]
    completed = subprocess.run(
        ["bash", *options, "-c", text],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    expected_code = 1 if "daily-quota" in text else 0
    assert completed.returncode == expected_code, completed.stderr


def test_the_newcomer_finds_the_installation_in_the_readme() -> None:
    commands = readme_commands((ROOT / "README.md").read_text("utf-8"))

    assert commands[0] == "export GEMINI_API_KEY=newcomer"
    assert commands[-2:] == [
        "gemini-cli-mcp doctor",
        "gemini-cli-mcp install claude-code --env GEMINI_API_KEY",
    ]


@pytest.mark.parametrize("block", blocks("json"), ids=str)
def test_json_blocks_are_valid_json(block: Block) -> None:
    json.loads(block.text)


@pytest.mark.parametrize("block", blocks("jsonc"), ids=str)
def test_jsonc_blocks_are_valid_engines_files(block: Block, tmp_path: Path) -> None:
    path = tmp_path / "engines.json"
    path.write_text(block.text)

    assert load_engines_file(path, default_engines("gemini", "flash")).engines


@pytest.mark.skipif(not shutil.which("node"), reason="the YAML parser needs Node")
@pytest.mark.parametrize(
    "text",
    [
        *(block.text for block in blocks("yaml")),
        *(path.read_text() for path in sorted((ROOT / ".github/workflows").glob("*.yml"))),
    ],
)
def test_workflows_are_valid_yaml_and_call_existing_scripts(text: str) -> None:
    subprocess.run(
        ["node", "-e", PARSE_YAML], input=text, cwd=ROOT / "tests/clients", text=True, check=True
    )

    for script in re.findall(r"- run: (\S+)", text):
        assert os.access(ROOT / script, os.X_OK)


def test_every_block_has_a_language_that_is_checked() -> None:
    languages = {block.language for block in BLOCKS}

    assert languages <= {"sh", "powershell", "json", "jsonc", "yaml", "python", ""}
    assert all(block.needs for block in blocks("powershell"))  # tried by scripts/windows-test
    assert all(block.page == "design.md" for block in blocks(""))  # the source layout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_resolve(page: Path) -> None:
    for link, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", page.read_text("utf-8")):
        if link.startswith("https://"):
            continue
        target = page.parent / link if link else page
        assert target.exists(), link
        headings = re.findall(r"^#+ (.*)$", target.read_text("utf-8"), re.M) if anchor else []
        slugs = [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings]
        assert not anchor or anchor in slugs, f"{link}#{anchor}"


def test_package_manifests_agree_with_the_program() -> None:
    manifest = json.loads((ROOT / "scripts/mcpb/manifest.json").read_text())
    server = json.loads((ROOT / "server.json").read_text())
    [package] = server["packages"]

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {manifest["name"], package["identifier"], project["name"]} == {"gemini-cli-research-mcp"}
    assert {manifest["version"], server["version"], package["version"]} == {__version__}
    assert {"gemini_api_key", "gemini_model"} <= set(manifest["user_config"])
    assert manifest["compatibility"]["platforms"] == ["darwin", "win32", "linux"]
    assert manifest["privacy_policies"] and (ROOT / "scripts/mcpb" / manifest["icon"]).exists()
    assert [tool["name"] for tool in manifest["tools"]] == TOOLS
    assert f"<!-- mcp-name: {server['name']} -->" in (ROOT / "README.md").read_text()
    assert len(server["description"]) <= 100


DEPLOY = ROOT / "deploy"


def test_the_containerfile_passes_hadolint() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    completed = subprocess.run(
        [hadolint, "--no-color", str(DEPLOY / "Containerfile")], capture_output=True, text=True
    )

    assert (completed.returncode, completed.stdout) == (0, "")


def test_the_containerfile_copies_existing_files_and_pins_the_cli() -> None:
    copy_sources = re.findall(
        r"^COPY (?!--from)(.+) \S+$", (DEPLOY / "Containerfile").read_text(), re.M
    )

    assert copy_sources
    for name in " ".join(copy_sources).split():
        assert (ROOT / name).exists(), name
    pinned = json.loads((ROOT / "tests/real-cli/package.json").read_text())["dependencies"]
    assert (
        f"@google/gemini-cli@{pinned['@google/gemini-cli']}"
        in (DEPLOY / "Containerfile").read_text()
    )


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_the_systemd_unit_is_valid(tmp_path: Path) -> None:
    text = (DEPLOY / "gemini-cli-mcp.service").read_text()
    unit = tmp_path / "gemini-cli-mcp.service"
    unit.write_text(re.sub(r"ExecStart=\S+", "ExecStart=/bin/true", text))

    completed = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True
    )

    warnings = [line for line in completed.stderr.splitlines() if "gemini-cli-mcp" in line]
    assert warnings == []
