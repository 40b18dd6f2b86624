"""The wheel in a fresh environment: it has its prompts and answers a client."""

import json
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.support import ROOT

HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    },
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    [built] = folder.glob("*.whl")
    return built


def test_the_wheel_holds_every_prompt_and_nothing_foreign(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()

    prompts = {f"gemini_cli_mcp/_prompts/{path.name}" for path in (ROOT / "prompts").iterdir()}
    assert prompts <= set(names)
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"gemini_cli_mcp"}


def test_the_wheel_in_a_fresh_environment_lists_its_tools_and_fills_its_prompts(
    wheel: Path, tmp_path: Path
) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv/bin/python"
    subprocess.run(
        [
            python,
            "-m",
            "pip",
            "install",
            "-qq",
            "--require-hashes",
            "-r",
            ROOT / "scripts/lock/run.txt",
        ],
        check=True,
    )
    subprocess.run([python, "-m", "pip", "install", "-qq", "--no-deps", wheel], check=True)
    calls = [
        HELLO,
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
    ]

    served = subprocess.run(
        [tmp_path / "venv/bin/gemini-cli-mcp"],
        input="".join(json.dumps(call) + "\n" for call in calls),
        cwd=tmp_path,
        env={"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    filled = subprocess.run(
        [
            python,
            "-c",
            "from gemini_cli_mcp import prompts\n"
            "print(prompts.path('search-prompt'))\n"
            "print(prompts.fill('search-prompt', query='Q?', date='D', mark='M'))",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )

    answers = [json.loads(line) for line in served.stdout.splitlines()]
    [listed] = [answer["result"]["tools"] for answer in answers if answer.get("id") == 2]
    assert [tool["name"] for tool in listed] == ["search"]
    assert filled.stdout.startswith(str((tmp_path / "venv").resolve()))
    assert "\nQ?\n" in filled.stdout
