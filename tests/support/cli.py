"""Run CLI commands in this process, without startup cost; capture output and exit code."""

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
    """Run a command in the stub's environment."""
    return run_command_in(stub.environ, *arguments, limits=stub.limits)


def run_command_in(
    environ: Mapping[str, str], *arguments: str, limits: Limits | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command in any environment."""
    out, err = io.BytesIO(), io.BytesIO()
    stdout, stderr = (
        io.TextIOWrapper(buffer, "utf-8", newline="\n", write_through=True) for buffer in (out, err)
    )
    with (
        mock.patch.dict(os.environ, environ, clear=True),
        redirect_stdout(stdout),
        redirect_stderr(stderr),
        _isolated_logging(),
    ):
        try:
            code = main(list(arguments), limits)
        except SystemExit as error:  # argparse
            code = int(error.code or 0)
    output, log = (buffer.getvalue().decode() for buffer in (out, err))
    return subprocess.CompletedProcess(list(arguments), code, output, log)


@contextmanager
def _isolated_logging() -> Generator[None]:
    """Restore logging afterwards: the program configures it for the whole process."""
    root, package = logging.getLogger(), logging.getLogger("gemini_cli_mcp")
    before = root.handlers, root.level, package.level
    root.handlers = []
    try:
        yield
    finally:
        root.handlers = before[0]
        root.setLevel(before[1])
        package.setLevel(before[2])
