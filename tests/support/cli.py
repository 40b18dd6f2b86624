"""The commands for people, in this process: their output and exit code, without a start-up."""

import io
import logging
import os
import subprocess
from collections.abc import Generator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from unittest import mock

from gemini_cli_mcp.__main__ import main
from gemini_cli_mcp.limits import Limits
from tests.support import Stub


def run_command(stub: Stub, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What a command does in the stub's environment."""
    return run_command_in(stub.environ, *arguments, limits=stub.limits)


def run_command_in(
    environ: Mapping[str, str], *arguments: str, limits: Limits | None = None
) -> subprocess.CompletedProcess[str]:
    """The same in any environment."""
    out, err = io.BytesIO(), io.BytesIO()
    stdout, stderr = (io.TextIOWrapper(each, "utf-8", write_through=True) for each in (out, err))
    with (
        mock.patch.dict(os.environ, environ, clear=True),
        redirect_stdout(stdout),
        redirect_stderr(stderr),
        _isolated_logging(),
    ):
        try:
            code = main(list(arguments), limits)
        except SystemExit as left:  # argparse
            code = int(left.code or 0)
    said, logged = (each.getvalue().decode() for each in (out, err))
    return subprocess.CompletedProcess(list(arguments), code, said, logged)


@contextmanager
def _isolated_logging() -> Generator[None]:
    """The program sets up logging for its whole process, which is that of the tests here."""
    root, ours = logging.getLogger(), logging.getLogger("gemini_cli_mcp")
    before = root.handlers, root.level, ours.level
    root.handlers = []
    try:
        yield
    finally:
        root.handlers = before[0]
        root.setLevel(before[1])
        ours.setLevel(before[2])
