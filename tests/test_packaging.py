"""The distributed packages: the wheel and the bundle for Claude Desktop."""

import json
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters

from tests.support import ROOT, TOOLS, Stub


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    [wheel_path] = folder.glob("*.whl")
    return wheel_path


def test_the_wheel_contains_every_prompt_and_only_this_package(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()

    prompts = {f"gemini_cli_mcp/_prompts/{path.name}" for path in (ROOT / "prompts").iterdir()}
    assert prompts <= set(names)
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"gemini_cli_mcp"}


@pytest.mark.long
async def test_the_wheel_works_in_a_fresh_environment(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv/bin/python")
    install = [python, "-m", "pip", "install", "-qq"]
    lock = ROOT / "scripts/lock/run.txt"
    subprocess.run([*install, "--require-hashes", "-r", lock], check=True)
    subprocess.run([*install, "--no-deps", wheel], check=True)
    server = StdioServerParameters(
        command=str(tmp_path / "venv/bin/gemini-cli-mcp"), cwd=tmp_path, env={"HOME": str(tmp_path)}
    )

    async with Client(server) as client:
        tool_names = [tool.name for tool in (await client.list_tools()).tools]
    prompt_output = subprocess.run(
        [
            python,
            "-c",
            "from gemini_cli_mcp import prompts\n"
            "print(prompts.template_path('search-prompt'))\n"
            "print(prompts.render('search-prompt', query='Q?', date='D', mark='M'))",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )

    assert tool_names == TOOLS
    assert prompt_output.stdout.startswith(str((tmp_path / "venv").resolve()))
    assert "\nQ?\n" in prompt_output.stdout


@pytest.mark.long
@pytest.mark.skipif(
    not shutil.which("npm"), reason="requires npm to install the official bundle tool"
)
def test_the_bundle_is_valid_and_runs_a_search(tmp_path: Path, stub: Stub) -> None:
    build = subprocess.run(
        [ROOT / "scripts/build-mcpb"], capture_output=True, text=True, check=False
    )
    assert build.returncode == 0, build.stdout + build.stderr
    assert "Manifest schema validation passes" in build.stdout + build.stderr
    shutil.unpack_archive(ROOT / "dist/gemini-cli-mcp.mcpb", tmp_path, "zip")

    entry = json.loads((tmp_path / "manifest.json").read_text())["server"]
    assert (tmp_path / entry["entry_point"]).exists()
    arguments = entry["mcp_config"]["args"]
    module = arguments[arguments.index("python") :]
    search = subprocess.run(
        [str(ROOT / ".venv/bin" / module[0]), *module[1:3], "search", "Why?"],
        cwd=tmp_path,
        env={**stub.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert search.returncode == 0, search.stderr
