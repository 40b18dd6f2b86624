"""The ways in which the CLI can sign in, and what runs have shown about them."""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gemini_cli_mcp.platforms.folders import home_folder


@dataclass(frozen=True)
class SignIn:
    """One way for the CLI to sign in."""

    auth_type: str | None
    """`security.auth.selectedType`; None lets the CLI decide from its environment."""
    env_file: Path | None = None
    login_file: Path | None = None


def available_sign_ins(environ: Mapping[str, str]) -> list[SignIn]:
    """Return the sign-ins that this environment offers, in the order to try them."""
    if environ.get("GEMINI_API_KEY"):
        # Explicit: with GOOGLE_GEMINI_BASE_URL set, the CLI would choose `gateway` and then
        # reject it, and a stale login in the user's settings would override the key.
        return [SignIn("gemini-api-key")]
    if environ.get("GOOGLE_GENAI_USE_VERTEXAI") == "true" or environ.get("GOOGLE_API_KEY"):
        return [SignIn("vertex-ai")]
    config_folder = user_folder(environ)
    # Not Path.is_file: it raises if the folder is not accessible.
    env_file = config_folder / ".env" if os.path.isfile(config_folder / ".env") else None  # noqa: PTH113
    login_file = config_folder / "oauth_creds.json"
    sign_ins: list[SignIn] = []
    if env_file:
        # Try a key before Vertex AI, as in the environment; then let the file's variables decide.
        sign_ins += [SignIn("gemini-api-key", env_file), SignIn(None, env_file)]
    if os.path.isfile(login_file):  # noqa: PTH113
        # Link the .env too: it may set the project of an enterprise login.
        sign_ins.append(SignIn("oauth-personal", env_file, login_file))
    return sign_ins or [SignIn(None)]


def user_folder(environ: Mapping[str, str]) -> Path:
    """Return the user's own `.gemini` folder."""
    return Path(environ.get("GEMINI_CLI_HOME") or home_folder(environ)) / ".gemini"


def is_signed_in(environ: Mapping[str, str]) -> bool:
    """Whether any sign-in is configured; only a run shows whether Google accepts it."""
    return available_sign_ins(environ) != [SignIn(None)]


def is_cli_variable(name: str) -> bool:
    """Whether the CLI reads this variable, from its environment or a .env file."""
    return name.upper() == "GEMINI_API_KEY" or name.upper().startswith("GOOGLE_")


class SignIns:
    """The sign-ins of one environment. Runs record which work and which do not exist."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._missing: set[SignIn] = set()
        """Sign-ins that turned out not to exist, such as a .env file without a key."""
        self._successes: Counter[SignIn] = Counter()
        self._working: SignIn | None = None

    def available(self) -> list[SignIn]:
        """Return the sign-ins that exist now: the user may sign in while the server runs."""
        return available_sign_ins(self._environ)

    def candidates(self) -> list[SignIn]:
        """Return the sign-ins to try, in this order, without those known to be missing."""
        sign_ins = self.available()
        return [sign_in for sign_in in sign_ins if sign_in not in self._missing] or sign_ins

    @property
    def working(self) -> SignIn | None:
        """The sign-in of the last dedicated run that succeeded."""
        return self._working

    def success_count(self, sign_in: SignIn) -> int:
        """Return the number of dedicated runs that succeeded with this sign-in."""
        return self._successes[sign_in]

    def record_success(self, sign_in: SignIn) -> None:
        """Record that a dedicated run succeeded with this sign-in."""
        self._working = sign_in
        self._successes[sign_in] += 1

    def record_missing(self, sign_in: SignIn) -> None:
        """Record that the CLI found no sign-in where this one should be."""
        self._missing.add(sign_in)
