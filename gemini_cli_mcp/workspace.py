"""The private folder of one running server, and the end of those that dead ones left.

Everything the CLI writes (its homes, its session records, its error reports) and the
files of corrections lie in `CONFIG_DIR/servers/<id>/`, which is removed at exit. The
server holds the lock in it as long as it lives; a later one removes what is no longer
locked, so even a killed server leaves nothing for long.

Only what a server demonstrably created is ever removed: a folder of the user's own, with a
generated name, that holds a lock file with our content. Anything else in there is foreign.
"""

import contextlib
import itertools
import logging
import os
import re
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Generator
from pathlib import Path

from gemini_cli_mcp.errors import ConfigError

logger = logging.getLogger(__name__)

LOCK_FILE = "lock"
LOCK_CONTENT = b"gemini-cli-mcp server folder; removed when its server has ended\n"
"""What tells our lock from any other file of that name."""
O_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
"""Windows has no such flag; links are looked for there before anything is opened."""

_SERVER_ID = re.compile(r"[0-9a-f]{16}")

if sys.platform == "win32":
    import msvcrt

    def _try_lock(descriptor: int) -> bool:
        try:
            os.lseek(descriptor, 0, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
else:
    import fcntl

    def _try_lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True


class Workspace:
    """A folder nobody else reads, made when first needed."""

    def __init__(self, config_dir: Path) -> None:
        self._servers = config_dir / "servers"
        self._root: Path | None = None
        self._lock: int | None = None

    def root(self) -> Path:
        """The folder itself."""
        if self._root is None:
            with self.os_errors_as_config_error():
                self._root = self._create()
        return self._root

    @contextlib.contextmanager
    def os_errors_as_config_error(self) -> Generator[None]:
        """Name the folder if the system refuses what is done with it."""
        try:
            yield
        except OSError as error:
            raise ConfigError(
                f"The folder {self._servers} cannot be used: {error.strerror or 'refused'}.",
                hint="Make it writable, or set GEMINI_MCP_CONFIG_DIR to a folder that is.",
            ) from None

    def _create(self) -> Path:
        config_dir = self._servers.parent
        config_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            self._servers.mkdir(mode=0o700)
        if not _is_folder(self._servers):
            raise ConfigError(
                f"{self._servers} is not a folder but a link or a file, so it is not used.",
                hint="Remove it, or set GEMINI_MCP_CONFIG_DIR to another folder.",
            )
        for folder in self.accessible_to_others():
            logger.warning("%s can be read or changed by other users: chmod 700 it", folder)
        root = self._servers / secrets.token_hex(8)
        root.mkdir(mode=0o700)
        lock = -1
        try:
            lock = os.open(root / LOCK_FILE, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
            # Locked before it is recognisable: whoever cleans up finds no content or a held lock.
            if not _try_lock(lock):
                raise OSError(None, "files cannot be locked there")  # noqa: TRY301 - as any other
            os.write(lock, LOCK_CONTENT)
        except OSError:  # a full disk: nobody else would know that the folder is ours
            if lock >= 0:
                os.close(lock)
            shutil.rmtree(root, ignore_errors=True)
            raise
        self._lock = lock
        return root

    def accessible_to_others(self) -> list[Path]:
        """Existing folders of ours that other users may read or change; they stay as they are."""
        if sys.platform == "win32":  # modes say nothing there
            return []
        return [
            folder
            for folder in (self._servers.parent, self._servers)
            if folder.is_dir() and stat.S_IMODE(folder.stat().st_mode) & 0o077
        ]

    def folder(self, *parts: str) -> Path:
        """A folder inside, created if need be."""
        path = self.root()
        for part in parts:  # one by one: `parents=True` would not make them private
            path /= part
            with self.os_errors_as_config_error():
                path.mkdir(mode=0o700, exist_ok=True)
        return path

    @contextlib.contextmanager
    def invalid_output_file(self, text: str) -> Generator[Path]:
        """`text` in a file that is alone in its folder, for as long as the context lasts."""
        folder, path = self._create_correction_folder()
        try:
            with self.os_errors_as_config_error():
                descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
                with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
                    file.write(text)
            yield path
        finally:
            try:
                shutil.rmtree(folder)
            except OSError as error:
                logger.error("Temporary file %s was not deleted: %s", path, error.strerror)

    def _create_correction_folder(self) -> tuple[Path, Path]:
        parent = self.folder("corrections")
        for timestamp in itertools.count(int(time.time())):
            folder = parent / str(timestamp)
            with self.os_errors_as_config_error(), contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
                return folder, folder / f"temp-invalid-output-{timestamp}.txt"
        raise AssertionError("numbers do not end")

    def remove_stale(self) -> int:
        """Remove what dead servers left; the number of their temporary files."""
        removed = 0
        for folder in self._server_folders():
            with contextlib.suppress(OSError), _stale_lock(folder):
                removed += sum(1 for _ in folder.rglob("temp-invalid-output-*.txt"))
                _remove(folder)
        return removed

    def stale_folders(self) -> list[Path]:
        """The folders that dead servers left."""
        stale: list[Path] = []
        for folder in self._server_folders():
            with contextlib.suppress(OSError), _stale_lock(folder):
                stale.append(folder)
        return stale

    def _server_folders(self) -> list[Path]:
        """What may be the folder of a server, by its name, kind and owner."""
        if not _is_folder(self._servers):
            return []
        try:
            entries = list(self._servers.iterdir())
        except OSError:
            return []  # whoever needs a folder there is told why there is none
        return [
            entry for entry in entries if _SERVER_ID.fullmatch(entry.name) and _is_own_folder(entry)
        ]

    def close(self) -> None:
        """Remove the folder and let the lock go."""
        if self._root is None or self._lock is None:
            return
        with contextlib.suppress(FileNotFoundError):  # somebody else has removed it
            _remove(self._root)
        os.close(self._lock)
        self._root = self._lock = None


def _is_own_folder(path: Path) -> bool:
    """Whether it is a folder of this user; what another server removes meanwhile is none."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and _is_own(status)


def _is_folder(path: Path) -> bool:
    """Whether it is a folder itself, and not a link to one."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def _is_own(status: os.stat_result) -> bool:
    return sys.platform == "win32" or status.st_uid == os.getuid()


@contextlib.contextmanager
def _stale_lock(folder: Path) -> Generator[None]:
    """Hold the lock of a server that does not; OSError if it lives, or the lock is not ours.

    A lock that is missing is never created: then the folder is not a server's.
    """
    lock = os.open(folder / LOCK_FILE, os.O_RDWR | O_NOFOLLOW)
    try:
        status = os.fstat(lock)
        if not stat.S_ISREG(status.st_mode) or not _is_own(status):
            raise FileNotFoundError
        if os.read(lock, len(LOCK_CONTENT) + 1) != LOCK_CONTENT:
            raise FileNotFoundError
        if not _try_lock(lock):
            raise BlockingIOError
        yield
    finally:
        os.close(lock)


def _remove(folder: Path) -> None:
    """Remove a server's folder, the lock last, so that a later sweep finds what could not go."""
    for _ in range(5):  # a dying child may still be writing into it
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != LOCK_FILE:
                with contextlib.suppress(OSError):
                    path.unlink()
        if [path.name for path in folder.iterdir()] == [LOCK_FILE]:
            shutil.rmtree(folder, ignore_errors=True)
            return
    logger.warning("The folder %s could not be removed; the next start tries again", folder)
