"""Change our entry in a client's configuration file, and nothing else in it.

The file may have comments, trailing commas, any indentation and line ends, and a byte order mark.
A file that cannot be read, understood or written safely is left as it is.
"""

import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import mkstemp

from gemini_cli_mcp import jsonc
from gemini_cli_mcp.cli.install.server_entry import SERVER_NAME
from gemini_cli_mcp.errors import ConfigError
from gemini_cli_mcp.json_values import JsonObject, object_or_empty
from gemini_cli_mcp.platforms import files

MAX_BYTES = 20 << 20
"""Maximum size of a configuration file; Claude Code's has reached several megabytes."""
BYTE_ORDER_MARK = "\N{ZERO WIDTH NO-BREAK SPACE}"


@dataclass(frozen=True)
class ConfigFile:
    """A client's configuration file as it was read."""

    path: Path
    key: str
    """The member that contains the servers."""
    original: bytes | None
    """None if the file does not exist."""
    content: JsonObject

    @property
    def has_entry(self) -> bool:
        return object_or_empty(self.content.get(self.key)).get(SERVER_NAME) is not None

    @property
    def entry(self) -> Mapping[str, object]:
        """Our entry; empty if there is none, or if it is not an object."""
        return object_or_empty(object_or_empty(self.content.get(self.key)).get(SERVER_NAME))

    def set_entry(self, entry: Mapping[str, object], *, private: bool) -> Path | None:
        """Write our entry; return the copy of what was there. A private file is the user's only."""
        servers = {**object_or_empty(self.content.get(self.key)), SERVER_NAME: entry}
        return self._change(
            lambda text: jsonc.set_member(text, (self.key, SERVER_NAME), entry),
            {**self.content, self.key: servers},
            private=private,
        )

    def remove_entry(self) -> Path | None:
        """Remove our entry; return the copy of what was there."""
        servers = {**object_or_empty(self.content.get(self.key))}
        del servers[SERVER_NAME]
        return self._change(
            lambda text: jsonc.remove_member(text, (self.key, SERVER_NAME)),
            {**self.content, self.key: servers},
            private=False,
        )

    def _change(
        self, edit: Callable[[str], str], expected: Mapping[str, object], *, private: bool
    ) -> Path | None:
        text = "{}\n" if self.original is None else self.original.decode()
        try:
            new_text = edit(text)
            is_as_expected = jsonc.loads(new_text.removeprefix(BYTE_ORDER_MARK)) == expected
            data = new_text.encode()
        except jsonc.DuplicateKey as error:
            raise _not_changed(self.path, f"is ambiguous: {error}") from None
        except (ValueError, RecursionError):  # for example a lone surrogate in our old entry
            is_as_expected, data = False, b""
        if not is_as_expected:
            raise _not_changed(self.path, "has a structure that cannot be edited safely")
        try:
            return self._replace(data, private=private)
        except OSError as error:
            raise _not_changed(self.path, f"cannot be written ({error.strerror})") from None

    def make_private(self) -> bool:
        """Take the permissions of other users away; return whether they had any."""
        if not files.HAS_MODES:
            return False
        try:
            mode = stat.S_IMODE(self.path.stat().st_mode)
            if mode & 0o077:
                self.path.chmod(mode & 0o700)
        except OSError as error:
            raise _not_changed(self.path, f"cannot be changed ({error.strerror})") from None
        return bool(mode & 0o077)

    def _replace(self, data: bytes, *, private: bool) -> Path | None:
        """Replace the file atomically, after making a copy of it."""
        target = self.path.resolve()  # keep a symlink into a dotfiles repository
        target.parent.mkdir(parents=True, exist_ok=True)
        status = None if self.original is None else target.stat()
        mode, copy = 0o600, None
        if status is not None:
            mode = stat.S_IMODE(status.st_mode)
            # Root may write to any file, but the owner's choice counts.
            if not mode & stat.S_IWUSR or not os.access(target, os.W_OK):
                raise _not_changed(self.path, "is read-only", hint="Make it writable first.")
            mode &= 0o700 if private else 0o777
        descriptor, name = mkstemp(dir=target.parent, prefix=f".{target.name}.")
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            temporary.chmod(mode)
            if status is not None and self.original is not None:
                files.keep_owner(temporary, status)
                copy = _write_copy(target, self.original, status)
            self._require_unchanged()
            files.replace(temporary, target)
        except BaseException:
            if copy:
                copy.unlink(missing_ok=True)  # nothing was changed, so there is nothing to undo
            raise
        finally:
            temporary.unlink(missing_ok=True)
        return copy

    def _require_unchanged(self) -> None:
        if _read(self.path) != self.original:
            raise _not_changed(self.path, "was changed by another program in the meantime")


def read_config_file(path: Path, key: str) -> ConfigFile:
    """Read the file; ConfigError if it cannot be read or understood."""
    original = _read(path)
    return ConfigFile(path, key, original, _parse(path, original, key))


def _read(path: Path) -> bytes | None:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise _not_changed(path, "is not a regular file")
        if status.st_size > MAX_BYTES:
            raise _not_changed(path, f"is larger than {MAX_BYTES >> 20} MB")
        return path.read_bytes()
    except FileNotFoundError:
        if path.is_symlink():
            raise _not_changed(path, "is a link to a file that does not exist") from None
        return None
    except OSError as error:
        raise _not_changed(path, f"cannot be read ({error.strerror})") from None


def _parse(path: Path, data: bytes | None, key: str) -> JsonObject:
    if data is None:
        return {}
    try:
        text = data.decode().removeprefix(BYTE_ORDER_MARK)
    except UnicodeDecodeError:
        raise _not_changed(path, "is not UTF-8 text") from None
    if not text.strip():
        hint = "Delete it, or write {} into it. It may be empty because a program was interrupted."
        raise _not_changed(path, "is empty", hint=hint)
    try:
        content = jsonc.loads(text)
    except RecursionError:
        raise _not_changed(path, "is nested too deeply") from None
    except ValueError as error:
        line: object = getattr(error, "lineno", None)
        location = f" (line {line})" if line else ""
        raise _not_changed(path, f"is not valid JSON{location}") from None
    result = object_or_empty(content)
    servers = result.get(key)
    if not isinstance(content, dict) or not (servers is None or isinstance(servers, dict)):
        raise _not_changed(path, "does not contain a client configuration")
    return result


def _write_copy(target: Path, original: bytes, status: os.stat_result) -> Path:
    """Copy the file next to itself under a new name, readable only by its owner."""
    timestamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    number = 0
    while True:
        suffix = f"-{number}" if number else ""
        copy = target.with_name(f"{target.name}.{timestamp}{suffix}.bak")
        try:
            descriptor = os.open(copy, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        except FileExistsError:
            number += 1
            continue
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(original)
            files.keep_owner(copy, status)
        except BaseException:
            copy.unlink(missing_ok=True)
            raise
        return copy


def _not_changed(path: Path, reason: str, *, hint: str | None = None) -> ConfigError:
    return ConfigError(
        f"{path} {reason}; it was not changed.",
        hint=hint
        or "Fix the file, or run the same command with --print and add its output by hand.",
    )
