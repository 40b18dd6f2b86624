"""The user's sign-in files in our private homes: links, or copies while a process uses them.

Windows can only link files on the same disk, so elsewhere a process gets a copy, which is deleted
with the last process that uses it.
"""

import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from gemini_cli_mcp.platforms import files

_lock = threading.Lock()
_copy_users: dict[Path, "set[SignInFiles]"] = {}
"""Who uses each copy."""


class SignInFiles:
    """What one process uses; release it when the process has ended."""

    def __init__(self, targets: Mapping[Path, Path | None]) -> None:
        """Make each path another name, or a copy, of its target; without one, an empty file."""
        try:
            for path, target in targets.items():
                with _lock:
                    if _provide(path, target):
                        _copy_users.setdefault(path, set()).add(self)
                    else:
                        _copy_users.pop(path, None)
        except OSError:
            self.release()
            raise

    def release(self) -> None:
        """Delete the copies that no other process uses. May be called repeatedly."""
        with _lock:
            for path in [path for path, users in _copy_users.items() if self in users]:
                _copy_users[path].remove(self)
                if not _copy_users[path]:
                    del _copy_users[path]
                    with suppress(OSError):  # it is deleted with its home
                        files.delete(path)


def _provide(path: Path, target: Path | None) -> bool:
    """Create or update the file; return whether it is a copy."""
    if target is None:
        if _is_empty_file(path):
            return False
    elif files.is_same_file(path, target):
        return False
    elif path in _copy_users and _is_copy(path, target):
        return True
    new_path = path.with_name(f"{path.name}.{token_hex(4)}")
    is_copy = False
    try:
        if target is None:
            new_path.touch(mode=0o600)
        else:
            is_copy = files.link_or_copy(target, new_path)
        files.replace(new_path, path)
    except OSError:
        with suppress(OSError):
            files.delete(new_path)
        raise
    return is_copy


def _is_empty_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink() and path.stat().st_size == 0


def _is_copy(path: Path, target: Path) -> bool:
    """Whether the user's file has not changed since it was copied."""
    try:
        copy, original = path.stat(), target.stat()
    except FileNotFoundError:
        return False
    return (copy.st_size, copy.st_mtime_ns) == (original.st_size, original.st_mtime_ns)
