"""The server's side of a guardian, which stops a whole process tree on Linux.

The guardian (guardian_main.py) runs the command. It kills the whole process tree, including
processes that left the group, on request and when the server dies. A request is a single byte
written to a pipe, which no cancellation can interrupt.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import anyio

from gemini_cli_mcp.process import guardian_main
from gemini_cli_mcp.process.process_tree import DRAIN_TIMEOUT, signal_group

GUARDIAN_TIMEOUT = 2.0
"""Seconds beyond the grace period for a guardian to kill a tree that ignores SIGTERM."""


class GuardianHandle:
    """The server's ends of the two pipes to a guardian: lifeline and status."""

    def __init__(self, scratch: Path | None, grace: float) -> None:
        self._scratch = scratch
        self._grace = grace
        lifeline_reader, self._lifeline_writer = os.pipe()
        self._status_reader, status_writer = os.pipe()
        os.set_blocking(self._status_reader, False)
        self.inherited_fds = (lifeline_reader, status_writer)
        self._open_fds = {*self.inherited_fds, self._lifeline_writer, self._status_reader}
        self._status_buffer = b""

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return the command line of the guardian that runs `argv`."""
        scratch = str(self._scratch or "")
        guardian_args = map(str, (os.getpid(), *self.inherited_fds, self._grace))
        script = guardian_main.__file__
        return [sys.executable, "-I", "-S", script, *guardian_args, scratch, *argv]

    async def terminate(self, pid: int, exited: asyncio.Event, drained: asyncio.Event) -> None:
        """Have the guardian stop the tree and wait for it; clean up if the guardian was killed."""
        self._request_stop()
        try:
            with anyio.move_on_after(self._grace + GUARDIAN_TIMEOUT, shield=True):
                await exited.wait()
        finally:
            if exited.is_set() and "clean" not in self._read_status():
                # The guardian was killed, and the command with it, but not the command's group.
                for command_pid in self._read_status().get("started", ()):
                    signal_group(int(command_pid), signal.SIGKILL)
        with anyio.move_on_after(DRAIN_TIMEOUT, shield=True):
            await drained.wait()

    def find_pid(self, pid: int) -> int | None:
        """Return the pid of the command rather than of the guardian."""
        return next((int(value) for value in self._read_status().get("started", ())), None)

    def exit_code(self, returncode: int | None) -> int | None:
        """Return the command's exit code, or the guardian's if it reported none."""
        status = self._read_status()
        if "failed" in status:
            error_number = int(status["failed"][0])
            raise OSError(error_number, os.strerror(error_number))
        if "exited" in status:
            return os.waitstatus_to_exitcode(int(status["exited"][0]))
        return returncode

    def close(self) -> None:
        self._request_stop()
        self._close_fds(self._status_reader)

    def _request_stop(self) -> None:
        self._close_fds(*self.inherited_fds)
        if self._lifeline_writer in self._open_fds:
            with contextlib.suppress(BrokenPipeError):  # it has already exited
                os.write(self._lifeline_writer, b".")
            self._close_fds(self._lifeline_writer)

    def _close_fds(self, *descriptors: int) -> None:
        for descriptor in self._open_fds.intersection(descriptors):
            os.close(descriptor)
            self._open_fds.discard(descriptor)

    def _read_status(self) -> dict[str, list[str]]:
        """Return the status lines written so far, keyed by their first word."""
        if self._status_reader in self._open_fds:
            with contextlib.suppress(BlockingIOError):
                self._status_buffer += os.read(self._status_reader, 4096)
        lines = (line.split() for line in self._status_buffer.decode(errors="replace").splitlines())
        return {line[0]: line[1:] for line in lines if line}
