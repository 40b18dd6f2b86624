"""Notice the end of the process that started us."""

# The stubs of pywin32 have no types for handles.
# pyright: basic, reportArgumentType=false, reportMissingModuleSource=false, reportReturnType=false

import os
import sys
from collections.abc import Callable

if sys.platform == "win32":
    import ctypes
    import sysconfig
    from pathlib import Path

    import pywintypes
    import win32api
    import win32con
    import win32event
    import win32process

    PROCESS_QUERY_LIMITED_INFORMATION = 0x1000

    def watch_parent() -> Callable[[], bool]:
        """Return a function that tells whether the process that started us is still running.

        On Windows the pid of the parent never changes, and is given to another process later, so
        a handle is kept. The launchers between a client and us (gemini-cli-mcp.exe, and python.exe
        of a virtual environment) wait for us: what counts is who started them.
        """
        launchers = Path(sysconfig.get_path("scripts"))
        try:
            child = win32api.GetCurrentProcess()
            parent = _open_parent(child)
            while _program(parent).parent == launchers:
                child, parent = parent, _open_parent(parent)
        except (OSError, pywintypes.error):
            return lambda: True  # we may not ask, so only the end of stdin counts
        return lambda: win32event.WaitForSingleObject(parent, 0) == win32event.WAIT_TIMEOUT

    class _ProcessInformation(ctypes.Structure):
        """PROCESS_BASIC_INFORMATION"""

        _fields_ = (("others", ctypes.c_void_p * 5), ("parent_pid", ctypes.c_size_t))

    def _open_parent(child: "pywintypes.HANDLEType") -> "pywintypes.HANDLEType":
        """Open the parent of a process; OSError if it has ended."""
        information = _ProcessInformation()
        ctypes.windll.ntdll.NtQueryInformationProcess(
            ctypes.c_void_p(int(child)),
            0,
            ctypes.byref(information),
            ctypes.sizeof(information),
            None,
        )
        access = win32con.SYNCHRONIZE | PROCESS_QUERY_LIMITED_INFORMATION
        parent = win32api.OpenProcess(access, False, information.parent_pid)
        if _started_at(parent) > _started_at(child):
            raise ProcessLookupError  # another process has its pid now
        return parent

    def _program(process: "pywintypes.HANDLEType") -> Path:
        """Return the program that a process runs. Not GetModuleFileNameEx: it reads its memory."""
        name = ctypes.create_unicode_buffer(1 << 15)
        size = ctypes.c_ulong(len(name))
        ctypes.windll.kernel32.QueryFullProcessImageNameW(
            ctypes.c_void_p(int(process)), 0, name, ctypes.byref(size)
        )
        return Path(name.value)

    def _started_at(process: "pywintypes.HANDLEType") -> float:
        return win32process.GetProcessTimes(process)["CreationTime"].timestamp()
else:

    def watch_parent() -> Callable[[], bool]:
        """Return a function that tells whether the process that started us is still running."""
        parent = os.getppid()
        return lambda: os.getppid() == parent
