"""The distributed packages: the wheel, the sdist and the bundle for Claude Desktop."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters

from tests.support import ROOT, TOOLS, Stub
from tests.support.matrix import representatives
from tests.support.mcp_server import structured_result

UV = Path(sys.executable).with_name("uv")
LOCK = ROOT / "scripts/lock/run.txt"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel and the sdist, built and checked with twine."""
    folder = tmp_path_factory.mktemp("packages")
    build = subprocess.run([ROOT / "scripts/build", folder], capture_output=True, text=True)
    assert build.returncode == 0, build.stdout + build.stderr
    assert build.stdout.count("PASSED") == 2, build.stdout
    [wheel] = folder.glob("*.whl")
    [sdist] = folder.glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}


def test_the_wheel_contains_every_prompt_and_only_this_package(packages: dict[str, Path]) -> None:
    names = zipfile.ZipFile(packages["wheel"]).namelist()

    prompts = {f"gemini_cli_mcp/_prompts/{path.name}" for path in (ROOT / "prompts").iterdir()}
    assert prompts <= set(names)
    stub = zipfile.ZipFile(packages["wheel"]).read("gemini_cli_mcp/_stub_gemini")
    assert stub == (ROOT / "scripts/stub-gemini").read_bytes()
    assert {name.split("/")[0].partition("-")[0] for name in names} == {
        "gemini_cli_mcp",
        "gemini_cli_research_mcp",
    }


@pytest.mark.parametrize("kind", representatives(["wheel", "sdist"], ["wheel"]))
async def test_a_package_works_in_an_empty_environment(
    packages: dict[str, Path], kind: str, tmp_path: Path
) -> None:
    """With the stub CLI that it contains."""
    environment = tmp_path / "venv"
    subprocess.run([UV, "venv", "-q", "--python", sys.executable, environment], check=True)
    install = [UV, "pip", "install", "-q", "--python", environment]
    subprocess.run([*install, "--require-hashes", "-r", LOCK], check=True)
    subprocess.run([*install, "--no-deps", "--no-build-isolation", packages[kind]], check=True)
    scripts = environment / "bin"
    server = StdioServerParameters(
        command=str(scripts / "gemini-cli-research-mcp"),
        cwd=tmp_path,
        env={
            "HOME": str(tmp_path),
            "PATH": os.pathsep.join((str(scripts), os.environ["PATH"])),
            "GEMINI_MCP_CLI_PATH": "gemini-cli-mcp-stub",
        },
    )

    async with Client(server) as client:
        tool_names = [tool.name for tool in (await client.list_tools()).tools]
        result = await client.call_tool("search", {"query": "Why?"})
    prompt_output = subprocess.run(
        [
            scripts / "python",
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
    assert structured_result(result)["success"]
    assert (scripts / "gemini-cli-mcp").exists()
    assert prompt_output.stdout.startswith(str(environment.resolve()))
    assert "\nQ?\n" in prompt_output.stdout


def test_nothing_tells_users_to_install_the_foreign_package() -> None:
    """`gemini-cli-mcp` on the public index is somebody else's program."""
    foreign_name = re.compile(
        r"(?:pip[x3]?\s+(?:install|run)|uvx|npx|uv\s+(?:tool\s+(?:install|run)|add|pip\s+install)"
        r"|uv\s+run\s+--with)"
        r"(?:\s+(?!--from)-\S+(?:[\s=][\d.]+)?)*\s+[\"'`]?gemini[-_]cli[-_]mcp(?![-_/.\w])"
        r"|\"(?:uvx|npx)\",\s*\"args\":\s*\[(?:\"-[^\"]*\",\s*)*\"gemini-cli-mcp\""
        r"|\"identifier\":\s*\"gemini-cli-mcp\""
        r"|gemini-cli-mcp\[",
    )
    assert foreign_name.search("pip install -U 'gemini-cli-mcp[api]'")  # the pattern works
    for instruction in (
        "uvx gemini-cli-mcp serve",
        "uvx --python 3.12 gemini-cli-mcp",
        "pipx run gemini-cli-mcp",
        "npx -y gemini-cli-mcp",
        "uv run --with gemini-cli-mcp x",
        "pip install gemini_cli_mcp",
        '{"command": "uvx", "args": ["gemini-cli-mcp"]}',
    ):
        assert foreign_name.search(instruction), instruction
    assert not foreign_name.search("uvx --from . gemini-cli-research-mcp")
    assert not foreign_name.search("pip install gemini_cli_mcp-0.1.0.whl")

    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    paths = [ROOT / name for name in listed.stdout.splitlines()]
    mentions = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in paths
        if path.is_file() and ROOT / "tests" not in path.parents
        for match in foreign_name.finditer(path.read_text("utf-8", "replace"))
    ]

    assert len(paths) > 100
    assert mentions == []


@pytest.mark.long
@pytest.mark.skipif(
    not shutil.which("npm"), reason="requires npm to install the official bundle tool"
)
async def test_the_bundle_is_valid_and_runs_a_search(tmp_path: Path, stub: Stub) -> None:
    build = subprocess.run(
        [ROOT / "scripts/build-mcpb"], capture_output=True, text=True, check=False
    )
    assert build.returncode == 0, build.stdout + build.stderr
    assert "Manifest schema validation passes" in build.stdout + build.stderr
    shutil.unpack_archive(ROOT / "dist/gemini-cli-research-mcp.mcpb", tmp_path, "zip")

    entry = json.loads((tmp_path / "manifest.json").read_text())["server"]
    config = entry["mcp_config"]
    assert (tmp_path / entry["entry_point"]).exists()
    assert config["command"] == "uv"
    server = StdioServerParameters(
        command=str(UV),
        args=[word.replace("${__dirname}", str(tmp_path)) for word in config["args"]],
        # An option that the user leaves empty is an empty variable.
        env={**os.environ, **dict.fromkeys(config["env"], ""), **stub.environ},
    )
    async with Client(server) as client:
        result = await client.call_tool("search", {"query": "Why?"})

    assert structured_result(result)["success"]
