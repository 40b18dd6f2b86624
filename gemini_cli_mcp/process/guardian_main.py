"""The guardian: runs one command and ends only when nothing of its tree is left (Linux).

    python -I -S guardian_main.py SERVER LIFELINE STATUS GRACE SCRATCH COMMAND...

It is a subreaper, so every descendant of the command, even one that left the session and
forked twice, is its child in the end. It reads from a pipe, the lifeline: a byte means that the
server (its pid) wants the tree ended, and the pipe's end without one that the server is gone,
however it went. Then the folder SCRATCH, if any, goes too. It also goes if the server has removed
the file `lock` in it: a command that was still dying may have written there after that.
STATUS gets the lines `started PID`, `failed ERRNO`, `exited STATUS` and at last `clean`.

Standard library only, and little of it: this starts with every call.
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
"""Seconds between two looks at a tree that is being ended."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main() -> None:
    server, lifeline, status = map(int, sys.argv[1:4])
    grace, scratch, command = float(sys.argv[4]), sys.argv[5], sys.argv[6:]
    for descriptor in (lifeline, status):
        os.set_inheritable(descriptor, False)  # not the command's business
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    guardian = Guardian(lifeline, status, grace)
    guardian.start(command)
    guardian.wait_and_end()
    gone = guardian.is_orphan() or os.getppid() != server
    if scratch and (gone or not os.path.exists(os.path.join(scratch, "lock"))):
        import shutil

        shutil.rmtree(scratch, ignore_errors=True)
    guardian.report("clean")


class Guardian:
    """One command, and everything that came of it."""

    def __init__(self, lifeline: int, status: int, grace: float) -> None:
        self._lifeline = lifeline
        self._status = status
        self._grace = grace
        self._child = 0
        self._exited = False
        self._stopped = False
        self._orphan = False
        self._terminated: set[int] = set()
        self._wake, waker = os.pipe()
        for descriptor in (self._wake, waker):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(waker)
        signal.signal(signal.SIGCHLD, self._on_signal)
        for number in STOP_SIGNALS:
            signal.signal(number, self._on_signal)

    def report(self, line: str) -> None:
        try:
            os.write(self._status, line.encode() + b"\n")
        except OSError:
            pass  # the server is gone

    def start(self, command: list[str]) -> None:
        failure, failed = os.pipe()  # both close on exec, so silence means that it worked
        guardian = os.getpid()
        self._child = os.fork()
        if self._child == 0:
            _exec_command(command, guardian, failed)
        os.close(failed)
        # The pipes belong to the tree alone now, so their end means that it is gone.
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nothing, descriptor)
        self.report(f"started {self._child}")
        if errno := os.read(failure, 16):
            self.report(f"failed {errno.decode()}")

    def wait_and_end(self) -> None:
        """Wait for the command to end, or for a reason to end it; then see to all the rest."""
        ending: float | None = None
        while self._reap():
            now = time.monotonic()
            if ending is None and (self._exited or self._stopped):
                ending = now
            if ending is not None:
                self._end_tree(hard=now - ending > self._grace)
            events = select.poll()  # not select(): a busy server has descriptors beyond 1023
            events.register(self._wake, select.POLLIN)
            if ending is None:
                events.register(self._lifeline, select.POLLIN)
            ready = dict(events.poll(None if ending is None else POLL_INTERVAL * 1000))
            if self._wake in ready:
                os.read(self._wake, 4096)
            if self._lifeline in ready:
                self._orphan = not os.read(self._lifeline, 1)
                self._stopped = True

    def is_orphan(self) -> bool:
        """Whether the server went without a word.

        A dying one closes its pipes a moment before its children get another parent.
        """
        events = select.poll()
        events.register(self._lifeline, select.POLLIN)
        if not self._stopped and events.poll(0):
            self._orphan = not os.read(self._lifeline, 1)
        return self._orphan

    def _on_signal(self, number: int, frame: object) -> None:
        if number in STOP_SIGNALS:
            self._stopped = True

    def _reap(self) -> bool:
        """Take note of what ended; whether anything is left."""
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

    def _end_tree(self, *, hard: bool) -> None:
        if not hard:
            for pid in _descendants() - self._terminated:
                _send(pid, signal.SIGTERM)
                self._terminated.add(pid)
            return
        stopped: set[int] = set()
        while new := _descendants() - stopped:  # frozen first: they cannot fork away
            for pid in new:
                _send(pid, signal.SIGSTOP)
            stopped |= new
        for pid in stopped:
            _send(pid, signal.SIGKILL)


def _exec_command(command: list[str], guardian: int, failed: int) -> None:
    """In the new process: be the command, or say why not."""
    try:
        for number in (*STOP_SIGNALS, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        os.setsid()
        # Should the guardian itself be killed, the command goes with it.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == guardian:
            os.execvp(command[0], command)  # noqa: S606 - no shell is what we want
    except OSError as error:
        os.write(failed, str(error.errno).encode())
    finally:
        os._exit(126)


def _descendants() -> set[int]:
    """Every living process below this one."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except (OSError, ValueError):
            continue  # it is gone already
        if state not in (b"Z", b"X"):
            children.setdefault(int(parent), []).append(int(name))
    descendants: set[int] = set()
    parents = [os.getpid()]
    while parents:
        below = children.get(parents.pop(), [])
        descendants.update(below)
        parents += below
    return descendants


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        pass  # it is gone already


if __name__ == "__main__":
    main()
