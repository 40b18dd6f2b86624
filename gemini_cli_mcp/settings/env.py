"""What deployments set: environment variables, read once and checked at start.

An empty variable counts as unset. A wrong value stops the program with CONFIG_ERROR
naming the variable. A missing binary, key or sign-in is no configuration error: it is
the answer of the call that needs it.
"""

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from gemini_cli_mcp.errors import ConfigError
from gemini_cli_mcp.limits import Limits
from gemini_cli_mcp.redaction import redact, secret_values
from gemini_cli_mcp.settings.engines_file import Engines, default_engines, load_engines_file
from gemini_cli_mcp.settings.upstreams import BaseUrl
from gemini_cli_mcp.types import Thinking

ProviderName = Literal["gemini", "antigravity", "api"]

_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

MIN_ROUNDS = 2
"""A deep search drafts and verifies at least once."""


class Settings(BaseModel):
    """The settings of one server. Field titles are the variables, descriptions their meaning."""

    model_config = ConfigDict(frozen=True)

    model: str | None = Field(
        None,
        title="GEMINI_MODEL",
        description="Model of main runs, passed as `--model VALUE`; unset: the CLI chooses",
    )
    correction_model: str | None = Field(
        None,
        title="GEMINI_CORRECTION_MODEL",
        description="The same for correction runs, independent of the other",
    )
    providers: Annotated[tuple[ProviderName, ...], Field(min_length=1)] = Field(
        ("gemini",),
        title="GEMINI_MCP_PROVIDERS",
        description="Who answers, in order, separated by commas: `gemini` (the CLI), `api` (the "
        "Gemini API), `antigravity` (the agy CLI). The later ones are fallbacks",
    )
    grounded_model: str = Field(
        "flash",
        title="GEMINI_MCP_GROUNDED_MODEL",
        description="Model of grounded_search; `flash` is the provider's current Flash",
    )
    grounded_thinking: Thinking = Field(
        "low",
        title="GEMINI_MCP_GROUNDED_THINKING",
        description="How much it thinks: off, low, medium or high",
    )
    agy_path: str = Field(
        "agy",
        title="GEMINI_MCP_AGY_PATH",
        description="The `agy` binary, looked up like the other one",
    )
    cli_path: str = Field(
        "gemini",
        title="GEMINI_MCP_CLI_PATH",
        description="The `gemini` binary; a bare name is looked up on PATH, then where desktop "
        "apps miss it (npm global, nvm, fnm, volta, homebrew, pnpm, bun)",
    )
    config_dir: Path = Field(
        default_factory=lambda: platformdirs.user_config_path("gemini-cli-mcp"),
        title="GEMINI_MCP_CONFIG_DIR",
        description="Private folder (0700) for the CLI's homes and temporary files; "
        "default: the platform's configuration folder + `gemini-cli-mcp`",
    )
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        300,
        title="GEMINI_MCP_TIMEOUT",
        description="Seconds one search may take in all, cycles and corrections included",
    )
    max_rounds: int = Field(
        5,
        title="DEEP_SEARCH_MAX_ITERATIONS",
        description="Rounds that one deep search may have; below 2 becomes 2",
    )
    round_timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        600,
        title="GEMINI_MCP_ROUND_TIMEOUT",
        description="Seconds one round of a deep search may take, cycles and corrections included",
    )
    deep_timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        1800,
        title="GEMINI_MCP_DEEP_TIMEOUT",
        description="Seconds one deep search may take in all",
    )
    max_cycles: Annotated[int, Field(ge=1, le=100)] = Field(
        3,
        title="GEMINI_MCP_MAX_CYCLES",
        description="Cycles (a run and, if needed, its correction) of one search or round; 1 s, "
        "2 s, then 5 s stand between them",
    )
    concurrency: Annotated[int, Field(ge=1, le=1000)] = Field(
        4,
        title="GEMINI_MCP_CONCURRENCY",
        description="CLI processes at once for single runs; further calls wait",
    )
    queue: Annotated[int, Field(ge=0, le=100_000)] = Field(
        64,
        title="GEMINI_MCP_QUEUE",
        description="Calls that may wait; beyond that the answer is BUSY, with `retry_after_s`",
    )
    warm: Annotated[int, Field(ge=0, le=100)] = Field(
        1,
        title="GEMINI_MCP_WARM",
        description="Shared CLI processes that `serve` keeps ready for searches beyond "
        "GEMINI_MCP_CONCURRENCY; 0: none",
    )
    warm_sessions: Annotated[int, Field(ge=1, le=1000)] = Field(
        64,
        title="GEMINI_MCP_WARM_SESSIONS",
        description="Runs at once in a warm process",
    )
    warm_idle: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        900,
        title="GEMINI_MCP_WARM_IDLE",
        description="Seconds without a run after which a warm process is given back; the next "
        "run brings it back",
    )
    grace: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        10,
        title="GEMINI_MCP_GRACE",
        description="Seconds that running calls have to end when an HTTP server is told to stop",
    )
    web_search: Path | None = Field(
        None,
        title="GEMINI_MCP_WEB_SEARCH",
        description="File with the engines of web_search; unset: one engine, `google`",
    )
    upstream_url: BaseUrl | None = Field(
        None,
        title="GEMINI_MCP_UPSTREAM_URL",
        description="Where `gateway` sends chats, up to and with `/v1`; its key, if it needs one, "
        "is GEMINI_MCP_UPSTREAM_KEY. Unset: `gateway.upstreams` of the engines file",
    )
    pass_env: tuple[str, ...] = Field(
        (),
        title="GEMINI_MCP_PASS_ENV",
        description="Further variables that the CLI may see, names separated by commas; it sees "
        "PATH, HOME, locale, proxies, certificates and its own GEMINI_* and GOOGLE_*",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "INFO",
        title="GEMINI_MCP_LOG_LEVEL",
        description="DEBUG, INFO, WARNING or ERROR; lines on stderr are `[LEVEL] message`",
    )
    limits: Limits = Limits()
    """Not for users: no variable sets it."""
    secrets: tuple[str, ...] = Field((), repr=False, exclude=True)
    """Values of the environment that must not leave this program."""

    @field_validator("log_level", mode="before")
    @classmethod
    def _upper_case(cls, value: object) -> object:
        return value.upper() if isinstance(value, str) else value

    @field_validator("max_rounds")
    @classmethod
    def _at_least_min_rounds(cls, value: int) -> int:
        return max(value, MIN_ROUNDS)

    @field_validator("providers", mode="before")
    @classmethod
    def _split_providers(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        return tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))

    @field_validator("pass_env", mode="before")
    @classmethod
    def _split_variable_names(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        names = tuple(name.strip() for name in value.split(",") if name.strip())
        if not all(_VARIABLE_NAME.fullmatch(name) for name in names):
            raise ValueError("should be names of variables, separated by commas")
        return names

    @field_validator("model", "correction_model", "grounded_model")
    @classmethod
    def _reject_flag(cls, value: str | None) -> str | None:
        if value and value.startswith("-"):
            raise ValueError("should be a model name, not a flag")
        return value

    @field_validator("web_search")
    @classmethod
    def _absolute_file(cls, value: Path | None) -> Path | None:
        try:
            return value.expanduser().absolute() if value else None
        except RuntimeError:
            raise ValueError("should be the path of a file") from None

    @field_validator("config_dir")
    @classmethod
    def _absolute_folder(cls, value: Path) -> Path:
        try:
            value = value.expanduser().absolute()
            usable = value.is_dir() or not value.exists()
        except (OSError, RuntimeError):
            usable = False
        if not usable:
            raise ValueError("should be a folder, or a path where one can be created")
        return value

    @cached_property
    def engines(self) -> Engines:
        """What web_search can be asked to use."""
        google = default_engines(self.providers[0], self.grounded_model)
        return load_engines_file(self.web_search, google) if self.web_search else google

    @classmethod
    def from_env(cls, environ: Mapping[str, str], limits: Limits | None = None) -> "Settings":
        """The configuration that `environ` holds; ConfigError names every wrong variable."""
        variables = {name: field.title for name, field in cls.model_fields.items() if field.title}
        values = {
            name: environ[variable].strip()
            for name, variable in variables.items()
            if environ.get(variable, "").strip()
        }
        try:
            settings = cls.model_validate({**values, "limits": limits or Limits()})
            # A bad engines file stops the start too; its accounts name further secrets.
            secrets = secret_values(environ, settings.engines.key_variables)
            return settings.model_copy(update={"secrets": secrets})
        except ValidationError as error:
            problems = (
                f"{variables[name]}={values[name]!r}: {_expectation(item['msg'])}"
                for item in error.errors()
                for name in [str(item["loc"][0])]
            )
            raise ConfigError(redact("; ".join(problems), secret_values(environ))) from None


def _expectation(message: str) -> str:
    """What pydantic says, as the end of our sentence."""
    message = message.removeprefix("Value error, ").removeprefix("Input ")
    return message[0].lower() + message[1:]
