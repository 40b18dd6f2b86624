"""A child process with all its descendants on Windows: a Job Object.

Windows ends every process in the job when it is terminated, and when its last handle closes: also
when our own process is killed. The child is created suspended and runs its first instruction as a
member of the job, so that nothing it starts is outside. Our own process is a member of one more
job: a child is a member of that from its creation, so that it ends with us even in the moment
before it joins its own job.
"""

# The stubs of pywin32 have wrong types, and most of its results have none.
# pyright: basic, reportArgumentType=false, reportAttributeAccessIssue=false, reportMissingModuleSource=false, reportReturnType=false

import asyncio
import ctypes
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import anyio

assert sys.platform == "win32"  # tells the type checker

from subprocess import CREATE_NO_WINDOW

import pywintypes
import win32api
import win32con
import win32job
import win32process

KILL_TIMEOUT = 2.0
"""Seconds for terminated processes to exit: a driver may delay that."""
POLL_INTERVAL = 0.02
KILLED_EXIT_CODE = 1
PROCESS_SUSPEND_RESUME = 0x0800
ACCESS_TO_SPAWNED = win32con.PROCESS_SET_QUOTA | win32con.PROCESS_TERMINATE | PROCESS_SUSPEND_RESUME


class WindowsJob:
    """The handle to a job; closing it ends every process in it."""

    exit_grace = 10.0  # nothing else lets the command write its last records, on a busy machine too

    def __init__(self) -> None:
        try:
            _join_job_of_our_own()
            self._job = _create_job()
        except pywintypes.error as error:
            raise OSError(None, error.strerror) from None

    async def spawn(
        self,
        child: asyncio.SubprocessProtocol,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
    ) -> asyncio.SubprocessTransport:
        """Create the process without a console window, and let it run as a member of the job."""
        transport, _ = await asyncio.get_running_loop().subprocess_exec(
            lambda: child,
            *argv,
            env=dict(env),
            cwd=cwd,
            creationflags=win32con.CREATE_SUSPENDED | CREATE_NO_WINDOW,
        )
        try:
            self._adopt(transport.get_pid())
        except (OSError, pywintypes.error) as error:
            transport.kill()
            transport.close()
            raise OSError(None, error.strerror) from None
        return transport

    def _adopt(self, pid: int) -> None:
        """Let a suspended process run as a member of the job."""
        process = win32api.OpenProcess(ACCESS_TO_SPAWNED, False, pid)
        win32job.AssignProcessToJobObject(self._job, process)
        if ctypes.windll.ntdll.NtResumeProcess(ctypes.c_void_p(int(process))):
            raise OSError(None, "the process cannot be resumed")

    async def terminate(self, exited: asyncio.Event) -> None:
        """End all processes. They cannot be asked: without a console they get no Ctrl-Break."""
        with suppress(pywintypes.error):
            win32job.TerminateJobObject(self._job, KILLED_EXIT_CODE)
        with anyio.move_on_after(KILL_TIMEOUT, shield=True):
            await exited.wait()
            while self._running_count():  # files of a process that is still exiting are in use
                await anyio.sleep(POLL_INTERVAL)

    def memory_bytes(self, pid: int) -> int:
        """Return the process's working set."""
        access = win32con.PROCESS_QUERY_INFORMATION | win32con.PROCESS_VM_READ
        try:
            handle = win32api.OpenProcess(access, False, pid)
            return int(win32process.GetProcessMemoryInfo(handle)["WorkingSetSize"])
        except pywintypes.error:
            return 0

    def exit_code(self, returncode: int | None) -> int | None:
        return returncode

    def close(self) -> None:
        """Close the handle, which ends what still runs in the job."""
        self._job.Close()

    def _running_count(self) -> int:
        accounting = win32job.QueryInformationJobObject(
            self._job, win32job.JobObjectBasicAccountingInformation
        )
        return int(accounting["ActiveProcesses"])


@cache
def _join_job_of_our_own() -> None:
    """Let Windows end all our children when our process ends, and not before.

    A process that may not join another job has only the jobs of its children.
    """
    job = _create_job()
    with suppress(pywintypes.error):
        win32job.AssignProcessToJobObject(job, win32api.GetCurrentProcess())
    job.Detach()  # only the end of our process closes it: that ends every member, us too


def _create_job() -> "pywintypes.HANDLEType":
    job = win32job.CreateJobObject(None, "")
    information = win32job.QueryInformationJobObject(
        job, win32job.JobObjectExtendedLimitInformation
    )
    flags = win32job.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE
    information["BasicLimitInformation"]["LimitFlags"] |= flags
    win32job.SetInformationJobObject(job, win32job.JobObjectExtendedLimitInformation, information)
    return job
