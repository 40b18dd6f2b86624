"""Private homes for the CLI, one per profile, so that nothing of the user's set-up runs.

GEMINI_CLI_HOME is the only isolation that holds (measured on 0.61): a user's GEMINI.md,
extensions, MCP servers, hooks and skills stay outside, and `tools.core` is at once the list
of tools that exist. Sign-in is linked in, never read or copied.
"""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

from gemini_cli_mcp import prompts
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.providers.child_environment import allowed_variables
from gemini_cli_mcp.providers.gemini.telemetry import DISABLED_ENVIRONMENT, ENABLED_ENVIRONMENT
from gemini_cli_mcp.types import Thinking, thinking_setting
from gemini_cli_mcp.workspace import Workspace


@dataclass(frozen=True)
class Profile:
    """A kind of run: which tools it has, which model, and how much its searches think."""

    name: str
    tools: tuple[str, ...]
    model: str | None
    thinking: Thinking | None = None


@dataclass(frozen=True)
class SignIn:
    """One way the CLI may be signed in."""

    auth_type: str | None
    """`security.auth.selectedType`; None lets the CLI decide by its environment."""
    env_file: Path | None = None
    login_file: Path | None = None


def available_sign_ins(environ: Mapping[str, str]) -> list[SignIn]:
    """The ways to sign in that this environment offers, the first one to be tried first."""
    if environ.get("GEMINI_API_KEY"):
        # Said outright: with GOOGLE_GEMINI_BASE_URL set the CLI would choose `gateway`, which
        # it then refuses, and a stale login in the user's settings would outrank the key.
        return [SignIn("gemini-api-key")]
    if environ.get("GOOGLE_GENAI_USE_VERTEXAI") == "true" or environ.get("GOOGLE_API_KEY"):
        return [SignIn("vertex-ai")]
    user = user_folder(environ)
    # os.path: Path's raises where a folder cannot be searched.
    env_file = user / ".env" if os.path.isfile(user / ".env") else None  # noqa: PTH113
    login_file = user / "oauth_creds.json"
    sign_ins: list[SignIn] = []
    if env_file:
        # A key comes before Vertex AI, as in the environment; failing that, by its variables.
        sign_ins += [SignIn("gemini-api-key", env_file), SignIn(None, env_file)]
    if os.path.isfile(login_file):  # noqa: PTH113
        # The .env comes along: it may name the project of an enterprise login.
        sign_ins.append(SignIn("oauth-personal", env_file, login_file))
    return sign_ins or [SignIn(None)]


def user_folder(environ: Mapping[str, str]) -> Path:
    """Where the CLI keeps what is the user's own."""
    return Path(environ.get("GEMINI_CLI_HOME") or environ.get("HOME") or Path.home()) / ".gemini"


def is_signed_in(environ: Mapping[str, str]) -> bool:
    """Whether there is any sign-in at all; if Google accepts it, only a run can tell."""
    return available_sign_ins(environ) != [SignIn(None)]


@dataclass(frozen=True)
class Home:
    """A home of the CLI that is ready to be used."""

    path: Path
    working_folder: Path
    """An empty folder to run in: the CLI inlines `@file` from where it runs."""
    has_telemetry: bool = True
    """Whether runs tell what they saw: those with tools do."""

    @contextlib.contextmanager
    def temporary_folder(self) -> Generator[Path]:
        """A folder for what one run writes: error reports with the whole conversation in them."""
        temp = Path(tempfile.mkdtemp(dir=self.path))
        try:
            yield temp
        finally:
            shutil.rmtree(temp, ignore_errors=True)

    def telemetry_file(self, temp: Path) -> Path:
        """Where a run with this temporary folder writes what it saw."""
        return temp / "telemetry.log"

    def environment(
        self, environ: Mapping[str, str], temp: Path, extra_names: Sequence[str] = ()
    ) -> dict[str, str]:
        """The child's environment: what is allowed of ours, less what would undo this home."""
        telemetry_env = {
            **ENABLED_ENVIRONMENT,
            "GEMINI_TELEMETRY_OUTFILE": str(self.telemetry_file(temp)),
        }
        allowed_env = {
            name: value
            for name, value in allowed_variables(environ, extra_names).items()
            if value
            or not is_cli_variable(name)  # an empty one would hide the one in a linked .env
        }
        # Each set even if empty, so that a linked .env cannot bring it back.
        return allowed_env | {
            "GEMINI_CLI_HOME": str(self.path),
            "GEMINI_SYSTEM_MD": str(self.path / ".gemini/system.md"),
            "GEMINI_CLI_SYSTEM_SETTINGS_PATH": str(self.path / "no-system-settings.json"),
            "GEMINI_CLI_SYSTEM_DEFAULTS_PATH": str(self.path / "no-system-defaults.json"),
            "GEMINI_MODEL": "",  # read by the CLI itself; our runs get `--model`, each kind its own
            "GEMINI_SANDBOX": "false",
            "NODE_OPTIONS": "",
            # One process instead of two: the launcher ignores SIGTERM.
            "GEMINI_CLI_NO_RELAUNCH": "true",
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
            "TMPDIR": str(temp),
            "TEMP": str(temp),
            "TMP": str(temp),
            "NO_COLOR": "1",
            **(telemetry_env if self.has_telemetry else DISABLED_ENVIRONMENT),
        }


def is_cli_variable(name: str) -> bool:
    """Whether a variable of this name is the CLI's to read."""
    return name.upper() == "GEMINI_API_KEY" or name.upper().startswith("GOOGLE_")


def prepare_home(workspace: Workspace, profile: Profile, sign_in: SignIn, limits: Limits) -> Home:
    """Create, or find again, the home for this profile and sign-in."""
    name = f"{profile.name}-{sign_in.auth_type or 'auto'}"
    # The CLI takes the first `.gemini/.env` on the way up from where it runs. Ours stands
    # before the user's, and is empty unless it is the user's that was asked for.
    _link_or_empty(workspace.folder(".gemini") / ".env", sign_in.env_file)
    home = Home(workspace.folder(name, "home"), workspace.folder(name, "work"), bool(profile.tools))
    gemini = workspace.folder(name, "home", ".gemini")
    if sign_in.login_file:
        _link_or_empty(gemini / "oauth_creds.json", sign_in.login_file)
    _write_atomically(
        gemini / "system.md", prompts.template_path("system-prompt").read_text(encoding="utf-8")
    )
    _write_atomically(
        gemini / "settings.json", json.dumps(_settings(profile, sign_in, limits), indent=1)
    )
    return home


def _link_or_empty(path: Path, target: Path | None) -> None:
    linked = path.readlink() if path.is_symlink() else None
    if os.path.lexists(path) and linked == target:
        return
    new = path.with_name(f"{path.name}.{token_hex(4)}")
    if target:
        new.symlink_to(target)
    else:
        new.touch(mode=0o600)
    new.replace(path)


def _write_atomically(path: Path, text: str) -> None:
    """Write the file whole or not at all: other runs may be reading it."""
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    new = path.with_name(f"{path.name}.{token_hex(4)}")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def _settings(profile: Profile, sign_in: SignIn, limits: Limits) -> dict[str, object]:
    settings: dict[str, object] = {
        "tools": {"core": list(profile.tools), "useRipgrep": False},
        "model": {
            "maxSessionTurns": limits.max_turns,
            "disableLoopDetection": True,
            "skipNextSpeakerCheck": True,
        },
        "general": {
            "maxAttempts": 1,  # our cycles own the retries: ten more inside each would multiply
            "enableAutoUpdate": False,
            "enableAutoUpdateNotification": False,
            "topicUpdateNarration": False,
            "plan": {"enabled": False},
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
            "web-search": _alias(profile.model, {"tools": [{"googleSearch": {}}], **thinking}),
            "web-fetch": _alias(profile.model, {"tools": [{"urlContext": {}}]}),
            "web-fetch-fallback": _alias(profile.model, {}),
        }
    elif thinking:
        override = {"generateContentConfig": thinking}
        models["customOverrides"] = [{"match": {"model": "web-search"}, "modelConfig": override}]
    if models:
        settings["modelConfigs"] = models
    return settings


def _telemetry_settings(profile: Profile) -> dict[str, object]:
    """Into a file of ours; where it lies, each process is told by its environment."""
    if not profile.tools:
        return {"enabled": False}
    return {"enabled": True, "target": "local", "logPrompts": True, "traces": False}


def _thinking_config(model: str | None, thinking: Thinking) -> dict[str, object]:
    setting = thinking_setting(thinking, model)
    if isinstance(setting, int):
        return {"thinkingConfig": {"thinkingBudget": setting}}
    return {"thinkingConfig": {"thinkingLevel": setting.upper()}}


def _alias(model: str, config: dict[str, object]) -> dict[str, object]:
    """Let a tool's own call use the main model.

    On another model a failing search sub-call is repeated without end: 2,260 requests in a
    minute were measured.
    """
    return {"extends": "base", "modelConfig": {"model": model, "generateContentConfig": config}}


def is_model_alias(model: str) -> bool:
    """Whether the CLI puts another model in the place of this name.

    Then an alias to it would lose its `tools`: the search would silently not search
    (measured on 0.61 for each of these). Such runs keep the CLI's own search model.
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
