"""File operations that differ between platforms: locks, owners, replacing and deleting.

On Windows a file that another program has open cannot be replaced or deleted, and virus scanners
open every new file for a moment. Such a failure is repeated for half a second.
"""

import os
import shutil
import stat
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

O_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
"""Not available on Windows, where links are checked for before a file is opened."""
O_BINARY = getattr(os, "O_BINARY", 0)
"""On Windows, files opened with os.open are text files without it."""
HAS_MODES = sys.platform != "win32"
"""Whether the mode of a file says who can read it."""
SHARING_ERRORS = (5, 32, 33)
"""ERROR_ACCESS_DENIED, ERROR_SHARING_VIOLATION, ERROR_LOCK_VIOLATION."""
RETRY_DELAYS = (0.01, 0.02, 0.04, 0.08, 0.15, 0.2)
"""Seconds between attempts."""

if sys.platform == "win32":
    import msvcrt

    def try_lock(descriptor: int) -> bool:
        """Lock the file for this process; return False if another one has locked it."""
        try:
            os.lseek(descriptor, 0, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def is_owned_by_user(status: os.stat_result) -> bool:
        """Whether the file belongs to this user; Windows says that elsewhere."""
        return True

    def accessible_to_others(folder: Path) -> bool:
        """Whether other users can access the folder; Windows modes do not say that."""
        return False

    def make_private(folder: Path) -> None:
        """Take a new folder away from other users, who may see it if it is outside the profile."""
        from gemini_cli_mcp.platforms.windows_acl import allow_only_user

        allow_only_user(folder)

    def keep_owner(path: Path, status: os.stat_result) -> None:
        """Do nothing: nobody replaces the files of other users there."""
else:
    import fcntl

    def try_lock(descriptor: int) -> bool:
        """Lock the file for this process; return False if another one has locked it."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def is_owned_by_user(status: os.stat_result) -> bool:
        """Whether the file belongs to this user."""
        return status.st_uid == os.getuid()

    def accessible_to_others(folder: Path) -> bool:
        """Whether other users can access the folder."""
        return bool(stat.S_IMODE(folder.stat().st_mode) & 0o077)

    def make_private(folder: Path) -> None:
        """Do nothing: the mode of a new folder says who can see it."""

    def keep_owner(path: Path, status: os.stat_result) -> None:
        """Let a new file belong to the user of the one it replaces, also when run with sudo."""
        new = path.stat()
        if new.st_uid != status.st_uid:
            os.chown(path, status.st_uid, status.st_gid)
        elif new.st_gid != status.st_gid:
            with suppress(PermissionError):  # a group that this user is not in
                os.chown(path, -1, status.st_gid)


def replace(source: Path, target: Path) -> None:
    """Rename `source` to `target`, which may exist."""
    _retry_sharing_errors(lambda: source.replace(target))


def delete(path: Path) -> None:
    """Delete a file, which may be missing."""
    _retry_sharing_errors(lambda: path.unlink(missing_ok=True))


def delete_folder(path: Path) -> None:
    """Delete a folder with all that it contains. Raise OSError if something remains."""
    _retry_sharing_errors(lambda: shutil.rmtree(path))


def link_or_copy(target: Path, path: Path, platform: str = sys.platform) -> bool:
    """Create `path` as another name of the file `target`, or copy it; return whether it is a copy.

    Symbolic links need a privilege on Windows. Hard links do not, but stay on one disk, and cannot
    be deleted if the file is read-only.
    """
    if platform != "win32":
        path.symlink_to(target)
        return False
    status = target.stat()
    if status.st_mode & stat.S_IWUSR:
        with suppress(OSError):
            path.hardlink_to(target)
            return False
    shutil.copyfile(target, path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    return True


def is_same_file(path: Path, target: Path) -> bool:
    """Whether both names lead to one existing file."""
    try:
        return path.samefile(target)
    except OSError:
        return False


def _retry_sharing_errors(operation: Callable[[], object]) -> None:
    for delay in RETRY_DELAYS:
        try:
            operation()
        except OSError as error:
            if getattr(error, "winerror", None) not in SHARING_ERRORS:
                raise
            time.sleep(delay)
        else:
            return
    operation()
