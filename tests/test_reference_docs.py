"""Every variable, command, option, tool, argument and error code is documented exactly once."""

import argparse
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from gemini_cli_mcp import errors
from gemini_cli_mcp.cli.arguments import build_parsers
from gemini_cli_mcp.errors import GeminiMcpError
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.settings.variable_names import SECRET_VARIABLES, known_variables
from tests.support import ROOT, TOOLS, Stub
from tests.support.doc_blocks import PAGES
from tests.support.matrix import needs_posix
from tests.support.mcp_server import in_process_client

CONFIGURATION = (ROOT / "docs/configuration.md").read_text("utf-8")
COMMANDS = (ROOT / "docs/commands.md").read_text("utf-8")
TOOL_PAGE = (ROOT / "docs/tools.md").read_text("utf-8")
TROUBLESHOOTING = (ROOT / "docs/troubleshooting.md").read_text("utf-8")
VARIABLE = re.compile(r"\b(?:GEMINI_MCP|DEEP_SEARCH|STUB_GEMINI|STUB_AGY)_[A-Z_]+\b")


def first_cells(page: str) -> list[str]:
    """The code words in the first column of all tables of a page."""
    rows = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    return [word for row in rows for word in re.findall(r"`([^`]+)`", row)]


def test_every_variable_is_listed_with_its_default_and_meaning() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \|$", CONFIGURATION, re.MULTILINE)

    def default(value: object) -> str:
        if isinstance(value, tuple):
            value = ",".join(cast("tuple[str, ...]", value))
        return "unset" if value in (None, "") else "see right" if callable(value) else f"`{value}`"

    assert rows == [
        (field.title, default(field.default_factory or field.default), field.description)
        for field in Settings.model_fields.values()
        if field.title
    ]


def test_secret_variables_are_listed_once() -> None:
    listed = Counter(first_cells(CONFIGURATION))

    assert {name: listed[name] for name in SECRET_VARIABLES} == dict.fromkeys(SECRET_VARIABLES, 1)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_no_page_names_a_variable_that_does_not_exist(page: Path) -> None:
    known = set(known_variables())
    named = set(VARIABLE.findall(page.read_text("utf-8")))

    assert named <= known | stub_variables()


def stub_variables() -> set[str]:
    stubs = (ROOT / "scripts/stub-gemini", ROOT / "scripts/stub-agy")
    variables = {name for stub in stubs for name in VARIABLE.findall(stub.read_text("utf-8"))}
    return {name for name in variables if name.startswith("STUB_")}


def test_every_variable_of_the_stubs_is_listed_once() -> None:
    page = (ROOT / "docs/ci.md").read_text("utf-8")

    assert sorted(first_cells(page)) == sorted(stub_variables())


def test_every_command_is_listed_once_and_exists() -> None:
    table = COMMANDS.partition("## ")[0]
    rows = re.findall(r"^\| `([\w-]+)[^|]*\|", table, re.MULTILINE)

    assert rows == list(build_parsers()[1])


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    """Return all options except --help."""
    return {
        option
        for action in parser._actions
        for option in action.option_strings
        if option.startswith("--") and option != "--help"
    }


RESEARCH_COMMANDS = ("search", "deep-search", "grounded-search", "web-search")


def documented_options() -> Iterator[tuple[str, str]]:
    """Yield each command and option of the option tables."""
    for title, section in re.findall(r"^## (.*?)$(.*?)(?=^## |\Z)", COMMANDS, re.M | re.S):
        for line in section.splitlines():
            cells = line.strip("|").split("|")
            if "`--" not in line or len(cells) < 2:
                continue
            names = [title.strip("`")] if len(cells) == 2 else re.findall(r"`([\w-]+)", cells[0])
            if "all of these" in line:
                names = list(RESEARCH_COMMANDS)
            for option in re.findall(r"`(--[a-z][a-z-]+)", cells[-2]):
                yield from ((name, option) for name in names)


def test_every_option_of_every_command_is_listed_once_and_exists() -> None:
    assert Counter(documented_options()) == Counter(
        (name, option)
        for name, parser in build_parsers()[1].items()
        for option in options_of(parser)
    )
    assert "--version" in COMMANDS


async def test_every_tool_and_argument_is_listed_once_and_exists(stub: Stub) -> None:
    sections = dict(re.findall(r"^## `(\w+)`$(.*?)(?=^## |\Z)", TOOL_PAGE, re.M | re.S))
    async with in_process_client(stub) as client:
        tools = (await client.list_tools()).tools

    assert sorted(sections) == sorted(TOOLS)
    assert {tool.name: first_cells(sections[tool.name]) for tool in tools} == {
        tool.name: list(tool.input_schema["properties"]) for tool in tools
    }


def test_every_error_code_is_listed_once_and_exists() -> None:
    codes = {
        value.code
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, GeminiMcpError) and hasattr(value, "code")
    }
    listed = re.findall(r"^\| ([A-Z_]+) \|", TROUBLESHOOTING, re.MULTILINE)

    assert sorted(listed) == sorted(codes)


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").split()) <= 900


@needs_posix
def test_the_mutations_name_files_and_tests_that_exist() -> None:
    page = (ROOT / "docs/contributing.md").read_text("utf-8")
    rows = re.findall(r"^\| ([\w/., ]+\.py) \| .* \| (test_\w+)(?:::(\w+))? \|$", page, re.M)

    assert len(rows) > 70
    for paths, module, name in rows:
        folder = (ROOT / "gemini_cli_mcp" / paths.split(", ")[0]).parent
        for path in paths.split(", "):
            assert (folder / path.rpartition("/")[2]).is_file(), path
        text = (ROOT / f"tests/{module}.py").read_text("utf-8")
        assert not name or f"def {name}(" in text, name


@needs_posix
def test_the_architecture_page_names_every_module() -> None:
    page = (ROOT / "docs/design.md").read_text("utf-8").partition("Imports point")[0]
    package = ROOT / "gemini_cli_mcp"
    modules = {path.stem for path in package.rglob("*.py") if not path.stem.startswith("__")}

    assert [name for name in sorted(modules) if not re.search(rf"\b{name}\b", page)] == []
