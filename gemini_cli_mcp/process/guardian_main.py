"""The guardian: run one command and exit only when its whole process tree is gone (Linux).

    python -I -S guardian_main.py SERVER LIFELINE STATUS GRACE SCRATCH COMMAND...

SERVER is the server's pid; LIFELINE and STATUS are file descriptors of pipes.

The guardian is a subreaper, so every descendant of the command, even one that left the session
and forked twice, eventually becomes its child. A byte on LIFELINE means that the server wants the
tree stopped; end of file without a byte means that the server has died. In that case the folder
SCRATCH, if given, is removed as well. It is also removed if the server has deleted the file `lock`
in it: a command that was still exiting may have written there afterwards.
STATUS receives the lines `started PID`, `failed ERRNO`, `exited STATUS` and finally `clean`.

Uses only the standard library, and little of it, because a guardian starts with every call.
"""

import ctypes
import os
import select
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
POLL_INTERVAL = 0.02
"""Seconds between checks of a tree that is being stopped."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main() -> None:
    server, lifeline, status = map(int, sys.argv[1:4])
    grace, scratch, command = float(sys.argv[4]), sys.argv[5], sys.argv[6:]
    for descriptor in (lifeline, status):
        os.set_inheritable(descriptor, False)  # the command must not inherit it
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    guardian = Guardian(lifeline, status, grace)
    guardian.start(command)
    guardian.supervise()
    server_gone = guardian.is_orphan() or os.getppid() != server
    if scratch and (server_gone or not os.path.exists(os.path.join(scratch, "lock"))):
        import shutil

        shutil.rmtree(scratch, ignore_errors=True)
    guardian.report("clean")


class Guardian:
    """Supervises one command and all its descendants."""

    def __init__(self, lifeline: int, status: int, grace: float) -> None:
        self._lifeline = lifeline
        self._status = status
        self._grace = grace
        self._child = 0
        self._exited = False
        self._stop_requested = False
        self._server_gone = False
        self._terminated: set[int] = set()
        self._wakeup_reader, wakeup_writer = os.pipe()
        for descriptor in (self._wakeup_reader, wakeup_writer):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(wakeup_writer)
        signal.signal(signal.SIGCHLD, self._on_signal)
        for signal_number in STOP_SIGNALS:
            signal.signal(signal_number, self._on_signal)

    def report(self, line: str) -> None:
        try:
            os.write(self._status, line.encode() + b"\n")
        except OSError:
            pass  # the server is gone

    def start(self, command: list[str]) -> None:
        # Both ends close on exec, so end of file means success.
        error_reader, error_writer = os.pipe()
        guardian_pid = os.getpid()
        self._child = os.fork()
        if self._child == 0:
            _exec_command(command, guardian_pid, error_writer)
        os.close(error_writer)
        # Now only the tree holds the standard pipes, so end of file means that it is gone.
        devnull = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(devnull, descriptor)
        self.report(f"started {self._child}")
        if errno := os.read(error_reader, 16):
            self.report(f"failed {errno.decode()}")

    def supervise(self) -> None:
        """Wait until the command exits or must be stopped, then stop the rest of the tree."""
        stop_started: float | None = None
        while self._reap():
            now = time.monotonic()
            if stop_started is None and (self._exited or self._stop_requested):
                stop_started = now
            if stop_started is not None:
                self._stop_tree(force=now - stop_started > self._grace)
            poller = select.poll()  # not select(): a busy server has descriptors beyond 1023
            poller.register(self._wakeup_reader, select.POLLIN)
            if stop_started is None:
                poller.register(self._lifeline, select.POLLIN)
            ready = dict(poller.poll(None if stop_started is None else POLL_INTERVAL * 1000))
            if self._wakeup_reader in ready:
                os.read(self._wakeup_reader, 4096)
            if self._lifeline in ready:
                self._server_gone = not os.read(self._lifeline, 1)
                self._stop_requested = True

    def is_orphan(self) -> bool:
        """Whether the server died without requesting a stop.

        The pipes of a dying server close slightly before its children are reparented.
        """
        poller = select.poll()
        poller.register(self._lifeline, select.POLLIN)
        if not self._stop_requested and poller.poll(0):
            self._server_gone = not os.read(self._lifeline, 1)
        return self._server_gone

    def _on_signal(self, signal_number: int, frame: object) -> None:
        if signal_number in STOP_SIGNALS:
            self._stop_requested = True

    def _reap(self) -> bool:
        """Reap exited children; return whether any are left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._child:
                self._exited = True
                self.report(f"exited {status}")

    def _stop_tree(self, *, force: bool) -> None:
        if not force:
            for pid in _descendants() - self._terminated:
                _send_signal(pid, signal.SIGTERM)
                self._terminated.add(pid)
            return
        frozen: set[int] = set()
        while running := _descendants() - frozen:  # freeze first, so that none can fork away
            for pid in running:
                _send_signal(pid, signal.SIGSTOP)
            frozen |= running
        for pid in frozen:
            _send_signal(pid, signal.SIGKILL)


def _exec_command(command: list[str], guardian_pid: int, error_writer: int) -> None:
    """Replace the forked process with the command, or report the error number."""
    try:
        for signal_number in (*STOP_SIGNALS, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(signal_number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        os.setsid()
        # If the guardian itself is killed, the kernel kills the command as well.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == guardian_pid:
            os.execvp(command[0], command)  # noqa: S606 - a shell is not wanted
    except OSError as error:
        os.write(error_writer, str(error.errno).encode())
    finally:
        os._exit(126)


def _descendants() -> set[int]:
    """Return the pids of all live descendants of this process."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except (OSError, ValueError):
            continue  # it has already exited
        if state not in (b"Z", b"X"):
            children.setdefault(int(parent), []).append(int(name))
    descendants: set[int] = set()
    parents = [os.getpid()]
    while parents:
        child_pids = children.get(parents.pop(), [])
        descendants.update(child_pids)
        parents += child_pids
    return descendants


def _send_signal(pid: int, signal_number: signal.Signals) -> None:
    try:
        os.kill(pid, signal_number)
    except OSError:
        pass  # it has already exited


if __name__ == "__main__":
    main()
