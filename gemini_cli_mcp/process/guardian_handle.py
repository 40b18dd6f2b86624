"""A child process with all its descendants on Linux and macOS: the server's side of a guardian.

The guardian (guardian_main.py) runs the command. It kills the whole process tree, including
processes that left the group, on request and when the server dies. A request is a single byte
written to a pipe, which no cancellation can interrupt.
"""

import asyncio
import contextlib
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio

assert sys.platform != "win32"  # tells the type checker

from gemini_cli_mcp.process import guardian_main

PIPE_BYTES = 1 << 20
"""Size of the pipes: the gemini CLI exits with unflushed data, and 64 KiB pipes lost some of it."""
PS_TIMEOUT = 0.5
GUARDIAN_TIMEOUT = 2.0
"""Seconds beyond the grace period for a guardian to kill a tree that ignores SIGTERM."""


class GuardianHandle:
    """The server's ends of the two pipes to a guardian: lifeline and status."""

    exit_grace = 1.0

    def __init__(self, scratch: Path | None, grace: float, platform: str) -> None:
        self._scratch = scratch
        self._grace = grace
        self._is_linux = platform == "linux"
        lifeline_reader, self._lifeline_writer = os.pipe()
        self._status_reader, status_writer = os.pipe()
        os.set_blocking(self._status_reader, False)
        self._inherited_fds = (lifeline_reader, status_writer)
        self._open_fds = {*self._inherited_fds, self._lifeline_writer, self._status_reader}
        self._status_buffer = b""

    async def spawn(
        self,
        child: asyncio.SubprocessProtocol,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
    ) -> asyncio.SubprocessTransport:
        """Start the guardian, which starts `argv`."""

        async def spawn(pipe_size: int) -> asyncio.SubprocessTransport:
            transport, _ = await asyncio.get_running_loop().subprocess_exec(
                lambda: child,
                *self._command(argv),
                env=dict(env),
                cwd=cwd,
                start_new_session=True,
                pass_fds=self._inherited_fds,
                pipesize=pipe_size,
            )
            return transport

        if not self._is_linux:
            return await spawn(-1)  # the size of a pipe cannot be chosen
        try:
            return await spawn(PIPE_BYTES)
        except PermissionError as error:
            # The user's limit on pipe memory is exceeded; fall back to the default of 64 KiB.
            if error.errno != errno.EPERM:
                raise
            return await spawn(-1)

    def _command(self, argv: Sequence[str]) -> list[str]:
        """Return the command line of the guardian that runs `argv`."""
        platform = "linux" if self._is_linux else "posix"
        guardian_args = map(str, (platform, os.getpid(), *self._inherited_fds, self._grace))
        script = guardian_main.__file__
        scratch = str(self._scratch or "")
        return [sys.executable, "-I", "-S", script, *guardian_args, scratch, *argv]

    async def terminate(self, exited: asyncio.Event) -> None:
        """Have the guardian stop the tree and wait for it; clean up if the guardian was killed."""
        self._request_stop()
        try:
            with anyio.move_on_after(self._grace + GUARDIAN_TIMEOUT, shield=True):
                await exited.wait()
        finally:
            if exited.is_set() and "clean" not in self._read_status():
                # The guardian was killed; on Linux the command with it, but not the whole group.
                for command_pid in self._read_status().get("started", ()):
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        # The pid is the group's id too; getpgid() fails once it was reaped.
                        os.killpg(int(command_pid), signal.SIGKILL)

    def memory_bytes(self, pid: int) -> int:
        """Return the resident memory of the command, not of the guardian with this pid."""
        command_pid = next(iter(self._read_status().get("started", ())), None)
        if command_pid is None:
            return 0
        try:
            if self._is_linux:
                statm = Path(f"/proc/{command_pid}/statm").read_text(encoding="ascii")
                return int(statm.split()[1]) * os.sysconf("SC_PAGE_SIZE")
            ps = [guardian_main.PS, "-o", "rss=", "-p", command_pid]
            kilobytes = subprocess.run(ps, capture_output=True, timeout=PS_TIMEOUT, check=False)
            return int(kilobytes.stdout) << 10
        except (OSError, ValueError, IndexError, subprocess.SubprocessError):
            return 0

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
        self._close_fds(*self._inherited_fds)
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
