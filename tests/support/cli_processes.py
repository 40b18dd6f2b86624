"""The processes of the CLI that a program has started."""

from pathlib import Path

from tests.support import Stub, require_proc


def acp_pids(stub: Stub) -> list[int]:
    """Return the pids of its shared processes."""
    return [pid for pid, command in _commands(stub).items() if b"--acp" in command]


def dedicated_pids(stub: Stub) -> list[int]:
    """Return the pids of its processes for one run each, whether they run or wait."""
    return [pid for pid, command in _commands(stub).items() if b"--acp" not in command]


def _commands(stub: Stub) -> dict[int, bytes]:
    require_proc()
    commands: dict[int, bytes] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # In this order: a guardian that is only just starting must not be taken for a CLI.
            environ = (folder / "environ").read_bytes()
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue  # the process has exited
        is_ours = f"GEMINI_CLI_HOME={stub.config_dir}/servers/".encode() in environ
        # The command line of a process that is exiting is empty.
        if is_ours and command and b"guardian_main.py" not in command:
            commands[int(folder.name)] = command
    return commands
