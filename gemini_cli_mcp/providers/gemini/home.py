"""Private CLI home folders, one per profile, that isolate runs from the user's setup.

GEMINI_CLI_HOME is the only isolation that works (measured on 0.61): the user's GEMINI.md,
extensions, MCP servers, hooks and skills are not loaded, and `tools.core` is also the complete
list of tools. Sign-in files are linked and never read; see sign_in_files.py for copies.
"""

import json
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex

from gemini_cli_mcp import prompts
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.platforms import files
from gemini_cli_mcp.providers.base import GroundingOptions
from gemini_cli_mcp.providers.child_environment import allowed_variables
from gemini_cli_mcp.providers.gemini.events import FETCH_TOOL, SEARCH_TOOL
from gemini_cli_mcp.providers.gemini.sign_in_files import SignInFiles
from gemini_cli_mcp.providers.gemini.sign_ins import SignIn, is_cli_variable
from gemini_cli_mcp.providers.gemini.telemetry_reader import (
    DISABLED_ENVIRONMENT,
    ENABLED_ENVIRONMENT,
)
from gemini_cli_mcp.types import Thinking, thinking_setting
from gemini_cli_mcp.workspace import Workspace


@dataclass(frozen=True)
class Profile:
    """A kind of run: its tools, its model, and the thinking level of its searches."""

    name: str
    tools: tuple[str, ...]
    model: str | None
    thinking: Thinking | None = None


def search_profile(model: str | None) -> Profile:
    """Return the profile of research runs."""
    return Profile("search", (SEARCH_TOOL, FETCH_TOOL), model)


def grounded_profile(options: GroundingOptions) -> Profile:
    """Return the profile of dedicated searches with these options."""
    name = f"grounded-{zlib.crc32(options.model.encode()):08x}-{options.thinking}"
    return Profile(name, (SEARCH_TOOL,), options.model, options.thinking)


@dataclass(frozen=True)
class Home:
    """A prepared home folder of the CLI."""

    path: Path
    working_folder: Path
    """An empty folder to run in: the CLI inlines `@file` from its working folder."""
    has_telemetry: bool = True
    """Whether runs write telemetry; only runs with tools do."""
    sign_in_files: SignInFiles = field(default_factory=lambda: SignInFiles({}))
    """Of the one process that the home was prepared for."""

    def create_temp_folder(self) -> Path:
        """Create a folder for the files of one process, such as error reports.

        Delete it afterwards: error reports contain the whole conversation.
        """
        return Path(tempfile.mkdtemp(dir=self.path))

    def telemetry_file(self, temp_folder: Path) -> Path:
        """Return the telemetry file of a run with this temporary folder."""
        return temp_folder / "telemetry.log"

    def environment(self, variables: Mapping[str, str], temp_folder: Path) -> dict[str, str]:
        """Return the child's environment: the inherited variables, with isolation enforced."""
        telemetry_env = {
            **ENABLED_ENVIRONMENT,
            "GEMINI_TELEMETRY_OUTFILE": str(self.telemetry_file(temp_folder)),
        }
        # Set even if empty, so that a linked .env cannot override them.
        return {
            **variables,
            "GEMINI_CLI_HOME": str(self.path),
            "GEMINI_SYSTEM_MD": str(self.path / ".gemini/system.md"),
            "GEMINI_CLI_SYSTEM_SETTINGS_PATH": str(self.path / "no-system-settings.json"),
            "GEMINI_CLI_SYSTEM_DEFAULTS_PATH": str(self.path / "no-system-defaults.json"),
            "GEMINI_MODEL": "",  # the CLI reads it; our runs pass `--model` per profile
            "GEMINI_SANDBOX": "false",
            "NODE_OPTIONS": "",
            # One process instead of two: the launcher ignores SIGTERM.
            "GEMINI_CLI_NO_RELAUNCH": "true",
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
            "TMPDIR": str(temp_folder),
            "TEMP": str(temp_folder),
            "TMP": str(temp_folder),
            "NO_COLOR": "1",
            **(telemetry_env if self.has_telemetry else DISABLED_ENVIRONMENT),
        }


def inherited_variables(
    environ: Mapping[str, str], extra_names: Sequence[str] = ()
) -> dict[str, str]:
    """Return the variables that the CLI inherits, including those in `extra_names`."""
    return {
        name: value
        for name, value in allowed_variables(environ, extra_names).items()
        # An empty value would hide the one in a linked .env.
        if value or not is_cli_variable(name)
    }


def prepare_home(workspace: Workspace, profile: Profile, sign_in: SignIn, limits: Limits) -> Home:
    """Create or update the home for this profile and sign-in."""
    name = f"{profile.name}-{sign_in.auth_type or 'auto'}"
    config_folder = workspace.folder(name, "home", ".gemini")
    # The CLI loads the first `.gemini/.env` in its working folder or a parent. Ours comes before
    # the user's, and is empty unless this sign-in uses the user's file.
    targets = {workspace.folder(".gemini") / ".env": sign_in.env_file}
    if sign_in.login_file:
        targets[config_folder / "oauth_creds.json"] = sign_in.login_file
    _write_atomically(
        config_folder / "system.md",
        prompts.template_path("system-prompt").read_text(encoding="utf-8"),
    )
    _write_atomically(
        config_folder / "settings.json",
        json.dumps(_build_settings(profile, sign_in, limits), indent=1),
    )
    return Home(
        workspace.folder(name, "home"),
        workspace.folder(name, "work"),
        bool(profile.tools),
        SignInFiles(targets),  # last: it has to be released
    )


def _write_atomically(path: Path, text: str) -> None:
    """Write the file atomically: other runs may be reading it."""
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    temp_path = path.with_name(f"{path.name}.{token_hex(4)}")
    temp_path.write_text(text, encoding="utf-8", newline="\n")
    files.replace(temp_path, path)


def _build_settings(profile: Profile, sign_in: SignIn, limits: Limits) -> dict[str, object]:
    settings: dict[str, object] = {
        "tools": {"core": list(profile.tools), "useRipgrep": False},
        "model": {
            "maxSessionTurns": limits.max_turns,
            "disableLoopDetection": True,
            "skipNextSpeakerCheck": True,
        },
        "general": {
            "maxAttempts": 1,  # we retry ourselves: ten more attempts inside each would multiply
            "enableAutoUpdate": False,
            "enableAutoUpdateNotification": False,
            "topicUpdateNarration": False,
            "plan": {"enabled": False},
            # Otherwise it deletes the records of processes that still wait for their prompt.
            "sessionRetention": {"enabled": False},
        },
        "context": {
            "includeDirectoryTree": False,
            "fileName": "NO_SUCH_CONTEXT_FILE.md",
            "discoveryMaxDirs": 0,
        },
        "skills": {"enabled": False},
        "hooksConfig": {"enabled": False},
        "experimental": {"enableAgents": False},
        "useWriteTodos": False,
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": _telemetry_settings(profile),
        "advanced": {"ignoreLocalEnv": True},
        "ui": {"showHomeDirectoryWarning": False, "showCompatibilityWarnings": False},
    }
    if sign_in.auth_type:
        settings["security"] = {"auth": {"selectedType": sign_in.auth_type}}
    thinking = _thinking_config(profile.model, profile.thinking) if profile.thinking else {}
    models: dict[str, object] = {}
    if profile.model and not is_model_alias(profile.model):
        models["customAliases"] = {
            "web-search": _tool_alias(profile.model, {"tools": [{"googleSearch": {}}], **thinking}),
            "web-fetch": _tool_alias(profile.model, {"tools": [{"urlContext": {}}]}),
            "web-fetch-fallback": _tool_alias(profile.model, {}),
        }
    elif thinking:
        override = {"generateContentConfig": thinking}
        models["customOverrides"] = [{"match": {"model": "web-search"}, "modelConfig": override}]
    if models:
        settings["modelConfigs"] = models
    return settings


def _telemetry_settings(profile: Profile) -> dict[str, object]:
    """Write telemetry to a local file, whose path each process gets from its environment."""
    if not profile.tools:
        return {"enabled": False}
    return {"enabled": True, "target": "local", "logPrompts": True, "traces": False}


def _thinking_config(model: str | None, thinking: Thinking) -> dict[str, object]:
    setting = thinking_setting(thinking, model)
    if isinstance(setting, int):
        return {"thinkingConfig": {"thinkingBudget": setting}}
    return {"thinkingConfig": {"thinkingLevel": setting.upper()}}


def _tool_alias(model: str, config: dict[str, object]) -> dict[str, object]:
    """Return an alias that makes a tool's own API call use the main model.

    With another model the CLI retries a failing search call forever: we measured 2,260 requests
    in one minute.
    """
    return {"extends": "base", "modelConfig": {"model": model, "generateContentConfig": config}}


def is_model_alias(model: str) -> bool:
    """Whether the CLI resolves this name to another model.

    A custom alias for such a name would lose its `tools`, and searches would silently not search
    (measured on 0.61 for each of these names). Such runs keep the CLI's own search model.
    """
    return model.startswith("auto") or model in {
        "pro",
        "flash",
        "flash-lite",
        "gemini-3-flash",
        "gemini-3.1-flash-lite",
        "gemini-3.5-flash",
        "gemini-3-pro-preview",
    }
