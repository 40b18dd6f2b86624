"""Prepare the processes of the CLI: the binary, the home folder, the arguments, the environment."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gemini_cli_mcp.errors import CliNotFound
from gemini_cli_mcp.platforms import files
from gemini_cli_mcp.providers.gemini.api_route import ApiRoute, find_route
from gemini_cli_mcp.providers.gemini.binary import GeminiBinary, child_path, find_gemini
from gemini_cli_mcp.providers.gemini.failing_calls import FailingCalls
from gemini_cli_mcp.providers.gemini.home import (
    Home,
    Profile,
    inherited_variables,
    prepare_home,
)
from gemini_cli_mcp.providers.gemini.session_record import read_and_delete_record
from gemini_cli_mcp.providers.gemini.sign_ins import SignIn, SignIns
from gemini_cli_mcp.providers.gemini.telemetry_evidence import found_so_far
from gemini_cli_mcp.providers.gemini.telemetry_reader import TelemetryFile
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.types import Findings
from gemini_cli_mcp.workspace import Workspace

logger = logging.getLogger(__name__)

KEY_AUTH_TYPES = ("gemini-api-key", "vertex-ai")
"""Sign-ins that never ask the user anything."""


@dataclass(frozen=True)
class LaunchSpec:
    """What processes that outlive a run are started with; outdated ones get no more runs."""

    binary: GeminiBinary
    sign_in: SignIn
    files: tuple[tuple[int, int, int], ...]
    """Inodes and times of the last change of the binary and the sign-in files."""


@dataclass(frozen=True)
class Launch:
    """What a process is started with."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    home: Home
    temp_folder: Path
    scratch: Path
    """Folder to remove if our own process is killed."""
    telemetry: TelemetryFile
    route: ApiRoute
    """How it reaches the API."""

    def delete_temp_folder(self) -> None:
        """Delete what only the process needed, once it has ended."""
        self.home.sign_in_files.release()
        with suppress(OSError):  # what remains is deleted with our own folder
            files.delete_folder(self.temp_folder)

    def delete_home(self) -> None:
        """Delete the home with all that belongs to it."""
        with suppress(OSError):
            files.delete_folder(self.home.path.parent)


@dataclass(frozen=True)
class RunLaunch(Launch):
    """What a process for a single run is started with."""

    binary: GeminiBinary
    profile: Profile
    file: Path | None
    """File of a correction."""
    sign_in: SignIn
    other_sign_ins: tuple[SignIn, ...]
    """Sign-ins to try if this one is missing."""
    sign_ins: SignIns
    """What runs have shown about the sign-ins."""
    emits_events: bool
    """Whether we ask for an event stream."""
    failing_calls: FailingCalls

    def read_api_calls(self, session_id: str) -> Findings:
        """Update `failing_calls`; return what the run has found and used so far."""
        events = self.telemetry.read_session(session_id)
        self.failing_calls.update(events)
        return found_so_far(events)

    def delete_files(self, session_id: str | None) -> None:
        """Delete the files of a run that has no result: they contain the conversation."""
        if session_id:
            read_and_delete_record(self.home.path, session_id)
        self.delete_temp_folder()


class Launcher:
    """Prepares processes; its methods access files, so call them in a worker thread."""

    def __init__(
        self,
        settings: Settings,
        workspace: Workspace,
        environ: Mapping[str, str],
        sign_ins: SignIns,
    ) -> None:
        self._settings = settings
        self._workspace = workspace
        self._environ = environ
        self.sign_ins = sign_ins
        self._model_flag_only_binaries: set[Path] = set()
        """Binaries that support no flag except `--model`."""

    def find_binary(self) -> GeminiBinary:
        """Return the binary to run. Raise CliNotFound if there is none."""
        return find_gemini(self._settings.cli_path, self._environ)

    def launch_spec(self) -> LaunchSpec | None:
        """Return the spec for a process that is started now, and will outlive this moment.

        None if there should be none: the CLI is not an official one, or not signed in.
        """
        try:
            binary = self.find_binary()
            # The sign-in of the next run. Until one has succeeded, accept only keys: an unverified
            # login might open a browser to sign in again.
            sign_in = self.sign_ins.candidates()[0]
            is_usable = sign_in.auth_type in KEY_AUTH_TYPES or (
                sign_in.auth_type and sign_in == self.sign_ins.working
            )
            if not binary.is_official or not is_usable:
                return None
            paths = (binary.path.resolve(), sign_in.env_file, sign_in.login_file)
            stats = [path.stat() for path in paths if path]
        except (CliNotFound, OSError, RuntimeError):
            return None
        # The time of modification can be restored by whoever writes the file; the other one is
        # the time of creation on Windows.
        file_states = tuple((stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns) for stat in stats)
        return LaunchSpec(binary, sign_in, file_states)

    def prepare_run(self, binary: GeminiBinary, profile: Profile, file: Path | None) -> RunLaunch:
        """Prepare a run with the first sign-in; a correction runs in the folder of `file`."""
        return self._prepare_run(binary, profile, file, self.sign_ins.candidates())

    def prepare_next_sign_in(self, launch: RunLaunch) -> RunLaunch:
        """Prepare the same run with the next sign-in, because the CLI did not find this one."""
        self.sign_ins.record_missing(launch.sign_in)
        return self._prepare_run(launch.binary, launch.profile, launch.file, launch.other_sign_ins)

    def prepare_without_events(self, launch: RunLaunch) -> RunLaunch:
        """Prepare the same run for a binary that rejected our flags, except `--model`."""
        self._model_flag_only_binaries.add(launch.binary.path)
        logger.info("%s does not support our flags; using only --model", launch.binary.path)
        sign_ins = (launch.sign_in, *launch.other_sign_ins)
        return self._prepare_run(launch.binary, launch.profile, launch.file, sign_ins)

    def prepare_acp(self, binary: GeminiBinary, profile: Profile, sign_in: SignIn) -> Launch:
        """Prepare a process that serves many runs; its profile should have a unique name."""
        home, temp_folder = self._prepare_home(profile, sign_in)
        return Launch(
            (*binary.argv, "--acp", *_model_flags(profile)),
            # The user did not ask to sign in.
            {**self._environment(binary, home, temp_folder), "NO_BROWSER": "true"},
            home.working_folder,
            home,
            temp_folder,
            self._workspace.root(),
            TelemetryFile(home.telemetry_file(temp_folder)),
            find_route(self._environ, sign_in.auth_type),
        )

    def _prepare_run(
        self,
        binary: GeminiBinary,
        profile: Profile,
        file: Path | None,
        sign_ins: Sequence[SignIn],
    ) -> RunLaunch:
        sign_in, *other_sign_ins = sign_ins
        emits_events = binary.path not in self._model_flag_only_binaries
        event_flags = ("--output-format", "stream-json") if emits_events else ()
        home, temp_folder = self._prepare_home(profile, sign_in)
        return RunLaunch(
            (*binary.argv, *event_flags, *_model_flags(profile)),
            self._environment(binary, home, temp_folder),
            file.parent if file else home.working_folder,
            home,
            temp_folder,
            self._workspace.root(),
            TelemetryFile(home.telemetry_file(temp_folder)),
            find_route(self._environ, sign_in.auth_type),
            binary,
            profile,
            file,
            sign_in,
            tuple(other_sign_ins),
            self.sign_ins,
            emits_events,
            FailingCalls(self._settings.limits, self._settings.secrets),
        )

    def _prepare_home(self, profile: Profile, sign_in: SignIn) -> tuple[Home, Path]:
        with self._workspace.os_errors_as_config_error():
            home = prepare_home(self._workspace, profile, sign_in, self._settings.limits)
            try:
                return home, home.create_temp_folder()
            except OSError:
                home.sign_in_files.release()
                raise

    def _environment(self, binary: GeminiBinary, home: Home, temp_folder: Path) -> dict[str, str]:
        environment = home.environment(self._inherited_variables, temp_folder)
        return {**environment, "PATH": child_path(binary, self._environ)}

    @cached_property
    def _inherited_variables(self) -> dict[str, str]:
        """Computed once: our environment does not change while we run."""
        return inherited_variables(self._environ, self._settings.pass_env)


def _model_flags(profile: Profile) -> tuple[str, ...]:
    return ("--model", profile.model) if profile.model else ()


@dataclass(frozen=True)
class ProcessKind:
    """What the processes that can serve a run have in common."""

    launcher: Launcher
    """Of the provider, which has its own environment and so its own sign-ins."""
    profile: Profile
