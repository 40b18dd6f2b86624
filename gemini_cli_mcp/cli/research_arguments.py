"""The arguments of the research commands."""

from pathlib import Path
from typing import TYPE_CHECKING

from gemini_cli_mcp.cli.command_parser import CommandParser, add_command, whole_number
from gemini_cli_mcp.settings.engines import DEFAULT_HITS, MAX_HITS, RECENCY_DAYS
from gemini_cli_mcp.types import THINKING_TOKENS

if TYPE_CHECKING:
    from gemini_cli_mcp.cli.command_parser import Subparsers


def add_commands(subparsers: "Subparsers") -> None:
    """Add the commands that research a question."""
    _add_search(subparsers)
    _add_deep_search(subparsers)
    _add_grounded_search(subparsers)
    _add_web_search(subparsers)


def _add_search(subparsers: "Subparsers") -> None:
    parser = add_command(
        subparsers,
        "search",
        summary="research a question and print the report",
        description="Research a question on the web and print a report with its sources. Takes "
        "10 to 60 seconds.",
        examples=[
            "$ which Python versions get security fixes today",
            '$ "What\'s new in SQLite?" --json',
            "$ latest stable Linux kernel --quiet > kernel.md",
        ],
    )
    _add_common(parser, query="the question to research", result="report")


def _add_deep_search(subparsers: "Subparsers") -> None:
    parser = add_command(
        subparsers,
        "deep-search",
        summary="research in rounds until the report is verified or the rounds are used up",
        description="Research a question in rounds until the report is verified. This takes "
        "minutes. Ctrl-C stops early and prints the best report so far; a second Ctrl-C leaves at "
        "once.",
        examples=[
            '$ "Is intermittent fasting safe?" --max-iterations 3 --output report.md',
            "$ state of solid state batteries --quiet --json",
        ],
    )
    _add_common(parser, query="the question to research", result="report")
    parser.add_argument(
        "--max-iterations",
        type=whole_number,
        metavar="N",
        help="maximum number of rounds, from 2 to DEEP_SEARCH_MAX_ITERATIONS (the default)",
    )
    output = parser.add_argument(
        "--output", type=Path, metavar="FILE.md", help="also write the report to this file"
    )
    parser.file_options = (output,)


def _add_grounded_search(subparsers: "Subparsers") -> None:
    parser = add_command(
        subparsers,
        "grounded-search",
        summary="answer a question with a single grounded Google search",
        description="Answer a question with a single grounded Google search, and list its sources.",
        examples=[
            "$ when is the next leap second",
            '$ "Who won the 2026 World Cup?" --model gemini-2.5-flash --thinking off --json',
            "GEMINI_MCP_PROVIDERS=api $ why is the sky blue --include-thoughts --quiet",
        ],
    )
    _add_common(parser, query="the question to answer", result="answer")
    parser.add_argument(
        "--model",
        metavar="NAME",
        help="model that runs the search (default: GEMINI_MCP_GROUNDED_MODEL)",
    )
    parser.add_argument(
        "--thinking",
        choices=list(THINKING_TOKENS),
        help="thinking level (default: GEMINI_MCP_GROUNDED_THINKING)",
    )
    parser.add_argument(
        "--include-thoughts",
        action="store_true",
        help="include the model's thoughts; requires provider `api`",
    )


def _add_web_search(subparsers: "Subparsers") -> None:
    parser = add_command(
        subparsers,
        "web-search",
        summary="search the web and list the hits",
        description="Search the web and list the hits with their addresses.",
        examples=[
            "$ python 3.15 release notes --recency oneMonth --count 5",
            '$ "grounding api" --engine google --json --quiet',
        ],
    )
    _add_common(parser, query="what to search for", result="list")
    parser.add_argument(
        "--engine",
        metavar="ID",
        help="id of an engine in the engines file (GEMINI_MCP_WEB_SEARCH)",
    )
    parser.add_argument(
        "--recency",
        choices=list(RECENCY_DAYS),
        help="only list pages at most this old (default: noLimit)",
    )
    parser.add_argument(
        "--count",
        type=whole_number,
        metavar="N",
        help=f"maximum number of hits, from 1 to {MAX_HITS} (default: {DEFAULT_HITS})",
    )


def _add_common(parser: CommandParser, *, query: str, result: str) -> None:
    """Add what all these commands have; `result` is what they print."""
    parser.add_argument(
        "words", nargs="*", metavar="QUERY", help=f"{query}; its words need no quotes"
    )
    parser.takes_words = True
    parser.add_argument(
        "--json", action="store_true", help=f"print the structured result instead of the {result}"
    )
    parser.add_argument(
        "--quiet",
        "-q",
        action="store_true",
        help="print no progress and no summary, only warnings and errors",
    )
