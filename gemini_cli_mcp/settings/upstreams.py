"""Where the gateway sends what it gets: the `gateway` part of the engines file, or one variable."""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from gemini_cli_mcp.errors import ConfigError

MatchMode = Literal["substring", "word"]
UPSTREAM_KEY_VARIABLE = "GEMINI_MCP_UPSTREAM_KEY"
BaseUrl = Annotated[str, Field(pattern=r"^https?://[^\s?#]+$", max_length=2000)]


class StrictModel(BaseModel):
    """A part of the file in which nothing unknown may stand."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class UpstreamEntry(StrictModel):
    """One entry of `upstreams`."""

    id: Annotated[str, Field(pattern=r"^[\w.-]{1,64}$")]
    base_url: BaseUrl = Field(alias="baseUrl")
    api_key_env: Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")] | None = Field(
        None, alias="apiKeyEnv"
    )
    models: Annotated[list[str], Field(min_length=1)] = Field(default_factory=lambda: ["*"])
    default: bool = False
    pass_authorization: bool = Field(default=False, alias="passAuthorization")
    responses: bool | None = None


class GatewaySettings(StrictModel):
    """The `gateway` part."""

    upstreams: list[UpstreamEntry] = Field(default_factory=list[UpstreamEntry])
    match_mode: MatchMode = Field("substring", alias="matchMode")
    max_rounds: Annotated[int, Field(ge=1, le=20)] = Field(3, alias="maxRounds")

    @property
    def key_variables(self) -> frozenset[str]:
        return frozenset(entry.api_key_env for entry in self.upstreams if entry.api_key_env)


DEFAULT_GATEWAY = GatewaySettings.model_validate({})


@dataclass(frozen=True)
class Upstream:
    """One that answers for some models."""

    id: str
    base_url: str
    key: str | None
    models: tuple[str, ...] = ("*",)
    key_variable: str | None = None
    """Where its key should be, if it needs one."""
    pass_authorization: bool = False
    responses: bool | None = None
    """Whether it knows the Responses API; None: that is to be found out."""

    def serves(self, model: str) -> bool:
        return any(fnmatchcase(model, pattern) for pattern in self.models)


@dataclass(frozen=True)
class Upstreams:
    """All there are."""

    all: tuple[Upstream, ...]
    default: Upstream | None

    def for_model(self, model: str) -> Upstream | None:
        """Who serves this model: the first whose pattern fits, else the default."""
        fitting = (upstream for upstream in self.all if upstream.serves(model))
        return next(fitting, self.default)


def load_upstreams(file: GatewaySettings, url: str | None, environ: Mapping[str, str]) -> Upstreams:
    """Those of the file with their keys; without any, the one at this address."""
    entries = list(file.upstreams)
    if not entries and url:
        variable = UPSTREAM_KEY_VARIABLE if environ.get(UPSTREAM_KEY_VARIABLE, "").strip() else None
        entry = {"id": "upstream", "baseUrl": url, "apiKeyEnv": variable}
        entries = [UpstreamEntry.model_validate(entry)]
    if not entries:
        raise ConfigError(
            "The gateway has no upstream: set GEMINI_MCP_UPSTREAM_URL, for example to "
            "http://127.0.0.1:11434/v1, or write `gateway.upstreams` into the file of "
            "GEMINI_MCP_WEB_SEARCH."
        )
    ids = [entry.id for entry in entries]
    if len(set(ids)) < len(ids):
        raise ConfigError("gateway.upstreams: an id is there twice.")
    defaults = [entry.id for entry in entries if entry.default]
    if len(defaults) > 1:
        raise ConfigError(f"gateway.upstreams: more than one default ({', '.join(defaults)}).")
    upstreams = {entry.id: _upstream(entry, environ) for entry in entries}
    default = upstreams[defaults[0]] if defaults else upstreams[ids[0]] if len(ids) == 1 else None
    return Upstreams(tuple(upstreams.values()), default)


def _upstream(entry: UpstreamEntry, environ: Mapping[str, str]) -> Upstream:
    key = environ.get(entry.api_key_env, "").strip() if entry.api_key_env else ""
    if not key.isascii() or not key.isprintable():
        raise ConfigError(f"{entry.api_key_env}: what it holds cannot be a key.")
    return Upstream(
        entry.id,
        entry.base_url.rstrip("/"),
        key or None,
        tuple(entry.models),
        entry.api_key_env,
        entry.pass_authorization,
        entry.responses,
    )
