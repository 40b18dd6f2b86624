"""Settings from environment variables, read once and validated at startup.

An empty variable counts as unset. An invalid value stops the program with a CONFIG_ERROR that
names the variable. A missing binary, key or sign-in is not a configuration error: it is reported
by the call that needs it.
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
from gemini_cli_mcp.sanitize import redact, secret_values
from gemini_cli_mcp.settings.engines import Engines, default_engines
from gemini_cli_mcp.settings.upstreams import BaseUrl
from gemini_cli_mcp.settings.validation import describe_problem
from gemini_cli_mcp.types import Thinking

ProviderName = Literal["gemini", "antigravity", "api"]

_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

MIN_ROUNDS = 2
"""A deep search has at least a draft round and a verification round."""


class Settings(BaseModel):
    """Settings of one server. Field titles are variable names; descriptions go into the docs."""

    model_config = ConfigDict(frozen=True)

    model: str | None = Field(
        None,
        title="GEMINI_MODEL",
        description="Model for `search` and `deep_search`, passed to the CLI as `--model`. Unset: "
        "the CLI chooses, and the provider `api` uses the current Flash model",
    )
    correction_model: str | None = Field(
        None,
        title="GEMINI_CORRECTION_MODEL",
        description="Same for runs that correct invalid JSON output. Unset: the CLI chooses, "
        "regardless of `GEMINI_MODEL`, and the provider `api` uses `GEMINI_MODEL`",
    )
    providers: Annotated[tuple[ProviderName, ...], Field(min_length=1)] = Field(
        ("gemini",),
        title="GEMINI_MCP_PROVIDERS",
        description="Comma-separated providers in order of preference: `gemini` (the gemini CLI), "
        "`api` (the Gemini API), `antigravity` (the agy CLI). All but the first are fallbacks",
    )
    grounded_model: str = Field(
        "flash",
        title="GEMINI_MCP_GROUNDED_MODEL",
        description="Model for `grounded_search` and the default engine of `web_search`; `flash` "
        "is the provider's current Flash model",
    )
    grounded_thinking: Thinking = Field(
        "low",
        title="GEMINI_MCP_GROUNDED_THINKING",
        description="Thinking level for `grounded_search` and the Google engines of `web_search`: "
        "`off`, `low`, `medium` or `high`",
    )
    agy_path: str = Field(
        "agy",
        title="GEMINI_MCP_AGY_PATH",
        description="Path or name of the `agy` binary, looked up like `GEMINI_MCP_CLI_PATH`",
    )
    cli_path: str = Field(
        "gemini",
        title="GEMINI_MCP_CLI_PATH",
        description="Path or name of the `gemini` binary. A bare name is looked up on PATH, then "
        "in common install locations that desktop apps do not have on their PATH (npm global, "
        "nvm, fnm, volta, homebrew, pnpm, bun)",
    )
    config_dir: Path = Field(
        default_factory=lambda: platformdirs.user_config_path("gemini-cli-mcp", appauthor=False),
        title="GEMINI_MCP_CONFIG_DIR",
        description="Private folder (mode 0700) for the CLI's home folders and temporary "
        "files. Default: `gemini-cli-mcp` in the platform's configuration folder",
    )
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        300,
        title="GEMINI_MCP_TIMEOUT",
        description="Maximum seconds for one `search`, `grounded_search` or `web_search`, "
        "including retries and corrections",
    )
    max_rounds: int = Field(
        5,
        title="DEEP_SEARCH_MAX_ITERATIONS",
        description="Maximum rounds of one deep search; values below 2 are raised to 2",
    )
    round_timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        600,
        title="GEMINI_MCP_ROUND_TIMEOUT",
        description="Maximum seconds for one deep search round, including retries and corrections",
    )
    deep_timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        1800,
        title="GEMINI_MCP_DEEP_TIMEOUT",
        description="Maximum seconds for one deep search",
    )
    max_cycles: Annotated[int, Field(ge=1, le=100)] = Field(
        3,
        title="GEMINI_MCP_MAX_CYCLES",
        description="Maximum cycles per search or round; a cycle is a run and, if needed, its "
        "correction. The delays between cycles are 1 s, 2 s, then 5 s",
    )
    concurrency: Annotated[int, Field(ge=1, le=1000)] = Field(
        4,
        title="GEMINI_MCP_CONCURRENCY",
        description="Maximum concurrent CLI processes that are started for a run each. Further "
        "calls use a shared process (`GEMINI_MCP_WARM`) or wait",
    )
    queue: Annotated[int, Field(ge=0, le=100_000)] = Field(
        64,
        title="GEMINI_MCP_QUEUE",
        description="Maximum calls waiting; further ones fail with `BUSY` and `retry_after_s`",
    )
    ready: Annotated[int, Field(ge=0, le=100)] = Field(
        1,
        title="GEMINI_MCP_READY",
        description="CLI processes that `serve` and `gateway` start ahead, each for one run and "
        "replaced when used: a search then starts a second earlier. Each uses about 205 MB. "
        "Official CLI only. 0 disables them, and so does `GEMINI_MCP_WARM=0` while this is unset",
    )
    warm: Annotated[int, Field(ge=0, le=100)] = Field(
        1,
        title="GEMINI_MCP_WARM",
        description="Maximum shared CLI processes, started only when runs overlap beyond "
        "`GEMINI_MCP_READY` and `GEMINI_MCP_CONCURRENCY`; 0 disables them",
    )
    warm_sessions: Annotated[int, Field(ge=1, le=1000)] = Field(
        64,
        title="GEMINI_MCP_WARM_SESSIONS",
        description="Maximum concurrent runs in one shared process",
    )
    warm_idle: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        900,
        title="GEMINI_MCP_WARM_IDLE",
        description="Seconds without a run after which processes that were started ahead and "
        "shared ones are stopped; the next call starts them again",
    )
    grace: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        10,
        title="GEMINI_MCP_GRACE",
        description="Seconds that running calls get to finish when `serve --http` shuts down",
    )
    web_search: Path | None = Field(
        None,
        title="GEMINI_MCP_WEB_SEARCH",
        description="Path of the engines file for `web_search`. Unset: a single engine, `google`",
    )
    upstream_url: BaseUrl | None = Field(
        None,
        title="GEMINI_MCP_UPSTREAM_URL",
        description="Base URL of the server behind `gateway`, including `/v1`; its API key, if "
        "any, is read from `GEMINI_MCP_UPSTREAM_KEY`. Used only if the engines file has no "
        "`gateway.upstreams`",
    )
    pass_env: tuple[str, ...] = Field(
        (),
        title="GEMINI_MCP_PASS_ENV",
        description="Comma-separated names of additional variables to pass to the CLI. It always "
        "gets PATH, HOME, locale, proxy and certificate variables, and its own `GEMINI_*` and "
        "`GOOGLE_*`",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "INFO",
        title="GEMINI_MCP_LOG_LEVEL",
        description="Log level: `DEBUG`, `INFO`, `WARNING` or `ERROR`. Logs are written to stderr "
        "as `[LEVEL] message`",
    )
    limits: Limits = Limits()
    """Not user-configurable."""
    secrets: tuple[str, ...] = Field((), repr=False, exclude=True)
    """Values from the environment that must never appear in output."""

    @field_validator("log_level", mode="before")
    @classmethod
    def _to_upper_case(cls, value: object) -> object:
        return value.upper() if isinstance(value, str) else value

    @field_validator("max_rounds")
    @classmethod
    def _clamp_max_rounds(cls, value: int) -> int:
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
            raise ValueError("should be comma-separated variable names")
        return names

    @field_validator("model", "correction_model", "grounded_model")
    @classmethod
    def _reject_flag(cls, value: str | None) -> str | None:
        if value and value.startswith("-"):
            raise ValueError("should be a model name, not a flag")
        return value

    @field_validator("web_search")
    @classmethod
    def _resolve_file(cls, value: Path | None) -> Path | None:
        try:
            return value.expanduser().absolute() if value else None
        except RuntimeError:
            raise ValueError("should be a file path") from None

    @field_validator("config_dir")
    @classmethod
    def _resolve_folder(cls, value: Path) -> Path:
        try:
            value = value.expanduser().absolute()
            is_usable = value.is_dir() or not value.exists()
        except (OSError, RuntimeError):
            is_usable = False
        if not is_usable:
            raise ValueError("should be a folder, or a path where one can be created")
        return value

    @property
    def ready_count(self) -> int:
        """Number of processes to start ahead."""
        return self.ready if self.warm or "ready" in self.model_fields_set else 0

    @cached_property
    def engines(self) -> Engines:
        """The engines of `web_search`."""
        default = default_engines(self.providers[0], self.grounded_model)
        if not self.web_search:
            return default
        # Imported late: its models take 15 ms, which every start would pay.
        from gemini_cli_mcp.settings.engines_file import load_engines_file

        return load_engines_file(self.web_search, default)

    @classmethod
    def from_env(cls, environ: Mapping[str, str], limits: Limits | None = None) -> "Settings":
        """Read the settings from `environ`; ConfigError names every invalid variable."""
        variables = {name: field.title for name, field in cls.model_fields.items() if field.title}
        values = {
            name: environ[variable].strip()
            for name, variable in variables.items()
            if environ.get(variable, "").strip()
        }
        try:
            settings = cls.model_validate({**values, "limits": limits or Limits()})
            # Load the engines file now: an invalid one is an error too, and it names more secrets.
            secrets = secret_values(environ, settings.engines.key_variables)
            return settings.model_copy(update={"secrets": secrets})
        except ValidationError as error:
            problems: dict[str, str] = {}  # the first one of each variable: others follow from it
            for item in error.errors():
                name = str(item["loc"][0])
                noun = "provider" if name == "providers" else "value"
                problem = f"{variables[name]}={values[name]!r}: {describe_problem(item, noun)}"
                problems.setdefault(name, problem)
            message = redact("; ".join(problems.values()), secret_values(environ))
            raise ConfigError(message) from None
