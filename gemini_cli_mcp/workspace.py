"""The private folder of a running server, and the removal of stale ones.

Everything the CLI writes (its homes, session records and error reports) and the files of
corrections are stored in `CONFIG_DIR/servers/<id>/`, which is removed at exit. A running server
holds the lock file in its folder; the next server removes folders that are no longer
locked, so that even a killed server leaves nothing behind permanently.

Only folders that were certainly created by a server are removed: owned by the user, with a
generated name, and with a lock file that has our content. Anything else is left untouched.
"""

import contextlib
import logging
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Generator
from pathlib import Path

from gemini_cli_mcp.errors import ConfigError
from gemini_cli_mcp.platforms import files, shell_commands

logger = logging.getLogger(__name__)

LOCK_FILE = "lock"
LOCK_CONTENT = b"gemini-cli-mcp server folder; removed when its server has ended\n"
"""Distinguishes our lock from other files of that name.

Must not change: servers only remove folders whose lock has exactly this content.
"""
_SERVER_ID = re.compile(r"[0-9a-f]{16}")


class Workspace:
    """A private folder, created on first use."""

    def __init__(self, config_dir: Path) -> None:
        self._servers = config_dir / "servers"
        self._root: Path | None = None
        self._lock: int | None = None
        self._creating = threading.Lock()

    def root(self) -> Path:
        """Return the folder, creating it on first use; runs are prepared in worker threads."""
        with self._creating:
            if self._root is None:
                with self.os_errors_as_config_error():
                    self._root = self._create()
            return self._root

    @contextlib.contextmanager
    def os_errors_as_config_error(self) -> Generator[None]:
        """Convert an OSError inside the context into a ConfigError that names the folder."""
        try:
            yield
        except OSError as error:
            raise ConfigError(
                f"Cannot use the folder {self._servers}: {error.strerror or 'access refused'}.",
                hint="Make it writable, or set GEMINI_MCP_CONFIG_DIR to a writable folder.",
            ) from None

    def _create(self) -> Path:
        config_dir = self._servers.parent
        config_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            self._servers.mkdir(mode=0o700)
        if not _is_folder(self._servers):
            raise ConfigError(
                f"{self._servers} is a link or a file, not a folder.",
                hint="Remove it, or set GEMINI_MCP_CONFIG_DIR to another folder.",
            )
        for folder in self.accessible_to_others():
            logger.warning(
                "Other users can access %s; run `%s`", folder, shell_commands.make_private(folder)
            )
        root = self._servers / secrets.token_hex(8)
        root.mkdir(mode=0o700)
        lock = -1
        try:
            files.make_private(root)
            flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | files.O_BINARY
            lock = os.open(root / LOCK_FILE, flags, 0o600)
            # Locked before the content is written: a concurrent cleanup finds either an
            # unrecognised file or a held lock.
            if not files.try_lock(lock):
                raise OSError(None, "files cannot be locked there")  # noqa: TRY301 - handled like the rest
            os.write(lock, LOCK_CONTENT)
        except OSError:  # e.g. a full disk: without its lock, the folder would never be removed
            if lock >= 0:
                os.close(lock)
            with contextlib.suppress(OSError):
                files.delete_folder(root)
            raise
        self._lock = lock
        return root

    def accessible_to_others(self) -> list[Path]:
        """Return our existing folders that other users can access; their modes are kept."""
        return [
            folder
            for folder in (self._servers.parent, self._servers)
            if folder.is_dir() and files.accessible_to_others(folder)
        ]

    def folder(self, *parts: str) -> Path:
        """Return a subfolder, creating it if needed."""
        path = self.root()
        for part in parts:  # one by one: `parents=True` creates parents with the default mode
            path /= part
            with self.os_errors_as_config_error():
                path.mkdir(mode=0o700, exist_ok=True)
        return path

    @contextlib.contextmanager
    def invalid_output_file(self, text: str) -> Generator[Path]:
        """Store `text` in a file, alone in its folder, until the context exits."""
        folder, path = self._create_correction_folder()
        try:
            with self.os_errors_as_config_error():
                descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
                with os.fdopen(
                    descriptor, "w", encoding="utf-8", errors="replace", newline="\n"
                ) as file:
                    file.write(text)
            yield path
        finally:
            try:
                files.delete_folder(folder)
            except OSError as error:
                logger.error("Failed to delete temporary file %s: %s", path, error.strerror)

    def _create_correction_folder(self) -> tuple[Path, Path]:
        parent = self.folder("corrections")
        timestamp = int(time.time())
        while True:
            folder = parent / str(timestamp)
            with self.os_errors_as_config_error(), contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
                return folder, folder / f"temp-invalid-output-{timestamp}.txt"
            timestamp += 1

    def remove_stale(self) -> int:
        """Remove stale folders and return the number of temporary files they contained."""
        removed_files = 0
        for folder in self._server_folders():
            with contextlib.suppress(OSError):
                with _lock_if_stale(folder):
                    count = sum(1 for _ in folder.rglob("temp-invalid-output-*.txt"))
                    _remove_content(folder)
                _remove_folder(folder)
                removed_files += count
        return removed_files

    def stale_folders(self) -> list[Path]:
        """Return the folders of servers that no longer run."""
        stale: list[Path] = []
        for folder in self._server_folders():
            with contextlib.suppress(OSError), _lock_if_stale(folder):
                stale.append(folder)
        return stale

    def _server_folders(self) -> list[Path]:
        """Return the entries that may be server folders by name, type and owner."""
        if not _is_folder(self._servers):
            return []
        try:
            entries = list(self._servers.iterdir())
        except OSError:
            return []  # root() reports the reason when it is called
        return [
            entry for entry in entries if _SERVER_ID.fullmatch(entry.name) and _is_own_folder(entry)
        ]

    def close(self) -> None:
        """Remove the folder and release the lock."""
        with self._creating:
            if self._root is None or self._lock is None:
                return
            with contextlib.suppress(FileNotFoundError):  # already removed
                _remove_content(self._root)
            os.close(self._lock)
            _remove_folder(self._root)
            self._root = self._lock = None


def _is_own_folder(path: Path) -> bool:
    """Return whether the path is a folder of this user; False if it was just removed."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and files.is_owned_by_user(status)


def _is_folder(path: Path) -> bool:
    """Return whether the path is a folder, and not a link to one."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


@contextlib.contextmanager
def _lock_if_stale(folder: Path) -> Generator[None]:
    """Hold a stale lock; OSError if its server is running or the file is not one of our locks.

    A missing lock is never created: without one, the folder does not belong to a server.
    """
    lock = os.open(folder / LOCK_FILE, os.O_RDWR | files.O_NOFOLLOW | files.O_BINARY)
    try:
        status = os.fstat(lock)
        if not stat.S_ISREG(status.st_mode) or not files.is_owned_by_user(status):
            raise FileNotFoundError
        if os.read(lock, len(LOCK_CONTENT) + 1) != LOCK_CONTENT:
            raise FileNotFoundError
        if not files.try_lock(lock):
            raise BlockingIOError
        yield
    finally:
        os.close(lock)


def _remove_content(folder: Path) -> None:
    """Remove all that a server folder contains, except its lock."""
    for _ in range(5):  # a child that is exiting may still write to it
        for path in folder.iterdir():
            with contextlib.suppress(OSError):
                if path.is_dir() and not path.is_symlink():
                    files.delete_folder(path)
                elif path.name != LOCK_FILE:
                    files.delete(path)
        if [path.name for path in folder.iterdir()] == [LOCK_FILE]:
            return
    logger.warning("Failed to remove %s; the next server start tries again", folder)


def _remove_folder(folder: Path) -> None:
    """Remove a server folder of which only the lock is left; a later cleanup finds any remains.

    The lock must not be open: Windows would not delete it.
    """
    with contextlib.suppress(OSError):
        if [path.name for path in folder.iterdir()] == [LOCK_FILE]:
            files.delete_folder(folder)
