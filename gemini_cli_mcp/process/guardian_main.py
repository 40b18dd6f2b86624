"""The guardian: run one command and exit only when its whole process tree is gone.

    python -I -S guardian_main.py PLATFORM SERVER LIFELINE STATUS GRACE SCRATCH COMMAND...

PLATFORM is `linux`, or `posix` for macOS and others; SERVER is the server's pid; LIFELINE and
STATUS are file descriptors of pipes.

On Linux the guardian is a subreaper, so every descendant of the command, even one that left the
session and forked twice, eventually becomes its child. Elsewhere it finds the descendants with
`ps`: by their parents and by the command's process group.

A byte on LIFELINE means that the server wants the tree stopped; end of file without a byte means
that the server has died. Then the folder SCRATCH, if given, is removed as well, and also if the
server has deleted the file `lock` in it: a command that was still exiting may have written there
afterwards. STATUS receives the lines `started PID`, `failed ERRNO`, `exited STATUS`, `clean`.

Uses only the standard library, and little of it, because a guardian starts with every call.
"""

import ctypes
import errno
import os
import select
import signal
import sys
import time

assert sys.platform != "win32"  # tells the type checker

PS = "/bin/ps"
PS_COLUMNS = ("-o", "pid=", "-o", "ppid=", "-o", "pgid=", "-o", "stat=")  # POSIX: one each
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PS_TIMEOUT = 0.5
KILL_TIMEOUT = 1.0  # seconds for killed processes to disappear that are not our children
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main() -> None:
    server, lifeline, status = map(int, sys.argv[2:5])
    grace, scratch, command = float(sys.argv[5]), sys.argv[6], sys.argv[7:]
    for descriptor in (lifeline, status):
        os.set_inheritable(descriptor, False)  # the command must not inherit it
    guardian_type = LinuxGuardian if sys.argv[1] == "linux" else PosixGuardian
    guardian = guardian_type(lifeline, status, grace)
    guardian.start(command)
    guardian.supervise()
    server_gone = guardian.is_orphan() or os.getppid() != server
    if scratch and (server_gone or not os.path.exists(os.path.join(scratch, "lock"))):
        import shutil

        shutil.rmtree(scratch, ignore_errors=True)
    guardian.report("clean")


class Guardian:
    """Supervises one command and all its descendants."""

    poll_interval = 0.02  # seconds between checks of a tree that is being stopped

    def __init__(self, lifeline: int, status: int, grace: float) -> None:
        self._lifeline = lifeline
        self._status = status
        self._grace = grace
        self._child = 0
        self._exited = False
        self._stop_requested = False
        self._server_gone = False
        self._signalled: set[int] = set()
        self._wakeup_reader, wakeup_writer = os.pipe()
        for descriptor in (self._wakeup_reader, wakeup_writer):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(wakeup_writer)
        for signal_number in (signal.SIGCHLD, *STOP_SIGNALS):
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
            self._exec_command(command, guardian_pid, error_writer)
        os.close(error_writer)
        # Now only the tree holds the standard pipes, so end of file means that it is gone.
        devnull = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(devnull, descriptor)
        self.report(f"started {self._child}")
        if error_number := os.read(error_reader, 16):
            self.report(f"failed {error_number.decode()}")

    def supervise(self) -> None:
        """Wait until the command exits or must be stopped, then stop the rest of the tree."""
        stop_started: float | None = None
        while self._reap() or self._has_orphans(stop_started):
            now = time.monotonic()
            if stop_started is None and (self._exited or self._stop_requested):
                stop_started = now
            if stop_started is not None:
                self._stop_tree(force=now - stop_started > self._grace)
            poller = select.poll()  # not select(): a busy server has descriptors beyond 1023
            poller.register(self._wakeup_reader, select.POLLIN)
            if stop_started is None:
                poller.register(self._lifeline, select.POLLIN)
            ready = dict(poller.poll(None if stop_started is None else self.poll_interval * 1000))
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
        self._stop_requested |= signal_number in STOP_SIGNALS

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
            for pid in self._find_tree() - self._signalled:
                _send_signal(pid, signal.SIGTERM)
                self._signalled.add(pid)
            return
        frozen: set[int] = set()
        while running := self._find_tree() - frozen:  # freeze first, so that none can fork away
            for pid in running:
                _send_signal(pid, signal.SIGSTOP)
            frozen |= running
        for pid in frozen:
            _send_signal(pid, signal.SIGKILL)
        self._signalled |= frozen

    def _exec_command(self, command: list[str], guardian_pid: int, error_writer: int) -> None:
        """Replace the forked process with the command, or report the error number."""
        try:
            for signal_number in (*STOP_SIGNALS, signal.SIGCHLD, signal.SIGPIPE):
                signal.signal(signal_number, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)
            os.setsid()
            self._die_with_guardian()
            if os.getppid() == guardian_pid:
                os.execvp(command[0], command)  # noqa: S606 - a shell is not wanted
        except OSError as error:
            os.write(error_writer, str(error.errno).encode())
        finally:
            os._exit(126)

    def _die_with_guardian(self) -> None:
        """Have the forked process killed with the guardian, where the system can do that."""

    def _find_tree(self) -> set[int]:
        """Return the pids of the command and of all its live descendants."""
        raise NotImplementedError

    def _has_orphans(self, stop_started: float | None) -> bool:
        """Whether processes of the tree may be left that are not children of the guardian."""
        return False


class LinuxGuardian(Guardian):
    """A subreaper: orphans of the tree become its children."""

    def __init__(self, lifeline: int, status: int, grace: float) -> None:
        super().__init__(lifeline, status, grace)
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def _die_with_guardian(self) -> None:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    def _find_tree(self) -> set[int]:
        processes: list[tuple[int, int]] = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    state, parent = file.read().rpartition(b")")[2].split()[:2]
            except (OSError, ValueError):
                continue  # it has already exited
            if state not in (b"Z", b"X"):
                processes.append((int(name), int(parent)))
        return _descendants(processes, {os.getpid()})


class PosixGuardian(Guardian):
    """Finds the tree with `ps`. An orphan that left the group before the first search is missed."""

    poll_interval = 0.1  # `ps` takes several milliseconds
    _has_ps = True

    def _find_tree(self) -> set[int]:
        processes: list[tuple[int, int]] = []
        roots: set[int] = set()
        output = self._run_ps("-A", *PS_COLUMNS) if self._has_ps else b""
        for row in map(bytes.split, output.splitlines()):
            pid, parent, group_id, state = row[:4] if len(row) > 3 else [b""] * 4
            if (pid + parent + group_id).isdigit() and not state.startswith(b"Z"):
                processes.append((int(pid), int(parent)))
                if int(group_id) == self._child or int(pid) in self._signalled:
                    roots.add(int(pid))
        self._has_ps = bool(processes)  # it may hang, or not be allowed: then the group has to do
        return roots | _descendants(processes, roots) if processes else {-self._child}

    def _has_orphans(self, stop_started: float | None) -> bool:
        if stop_started and time.monotonic() > stop_started + self._grace + KILL_TIMEOUT:
            return False
        return any(_send_signal(pid, 0) for pid in (-self._child, *self._signalled))

    def _run_ps(self, *arguments: str) -> bytes:
        """Return the output of `ps`; the module subprocess would take too long to import."""
        reader, writer = os.pipe()
        output = (os.POSIX_SPAWN_DUP2, writer, 1)
        try:
            pid = os.posix_spawn(PS, [PS, *arguments], os.environ, file_actions=[output])
        except OSError:
            pid = 0
        os.close(writer)
        text, deadline = b"", time.monotonic() + PS_TIMEOUT
        poller = select.poll()
        poller.register(reader, select.POLLIN)
        while poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
            if not (chunk := os.read(reader, 1 << 16)):
                break
            text += chunk
        os.close(reader)
        if pid:
            _send_signal(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        try:
            os.read(self._wakeup_reader, 4096)  # its exit is not the exit that we wait for
        except BlockingIOError:
            pass
        return text


def _descendants(processes: list[tuple[int, int]], roots: set[int]) -> set[int]:
    """Return the pids of all descendants of `roots`, given the pid and parent of each process."""
    tree = set(roots)
    while children := {pid for pid, parent in processes if parent in tree} - tree:
        tree |= children
    return tree - roots


def _send_signal(pid: int, signal_number: int) -> bool:
    """Return whether the process exists, or the group if the number is negative."""
    try:
        os.kill(pid, signal_number)
    except OSError as error:
        return error.errno != errno.ESRCH
    return True


if __name__ == "__main__":
    main()
