"""The gateway's upstreams, from the engines file or GEMINI_MCP_UPSTREAM_URL."""

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
    """A section of the engines file that rejects unknown fields."""

    # Built late: most servers start without an engines file, and building takes 20 ms.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class UpstreamEntry(StrictModel):
    """An entry of `gateway.upstreams`."""

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
    """The `gateway` section."""

    upstreams: list[UpstreamEntry] = Field(default_factory=list[UpstreamEntry])
    match_mode: MatchMode = Field("substring", alias="matchMode")
    max_rounds: Annotated[int, Field(ge=1, le=20)] = Field(3, alias="maxRounds")

    @property
    def key_variables(self) -> frozenset[str]:
        return frozenset(entry.api_key_env for entry in self.upstreams if entry.api_key_env)


DEFAULT_GATEWAY = GatewaySettings.model_construct()


@dataclass(frozen=True)
class Upstream:
    """An OpenAI-compatible server that serves some models."""

    id: str
    base_url: str
    key: str | None
    models: tuple[str, ...] = ("*",)
    key_variable: str | None = None
    """The environment variable for its API key, if it needs one."""
    pass_authorization: bool = False
    responses: bool | None = None
    """Whether it supports the Responses API; None if unknown, to be detected on first use."""

    def serves(self, model: str) -> bool:
        return any(fnmatchcase(model, pattern) for pattern in self.models)


@dataclass(frozen=True)
class Upstreams:
    """All configured upstreams."""

    all: tuple[Upstream, ...]
    default: Upstream | None

    def for_model(self, model: str) -> Upstream | None:
        """Return the first upstream with a pattern that matches the model, else the default."""
        matches = (upstream for upstream in self.all if upstream.serves(model))
        return next(matches, self.default)


def load_upstreams(
    gateway: GatewaySettings, url: str | None, environ: Mapping[str, str]
) -> Upstreams:
    """Return the upstreams of the engines file with their keys, or else the one at `url`."""
    entries = list(gateway.upstreams)
    if not entries and url:
        variable = UPSTREAM_KEY_VARIABLE if environ.get(UPSTREAM_KEY_VARIABLE, "").strip() else None
        entry = {"id": "upstream", "baseUrl": url, "apiKeyEnv": variable}
        entries = [UpstreamEntry.model_validate(entry)]
    if not entries:
        raise ConfigError(
            "The gateway has no upstream. Set GEMINI_MCP_UPSTREAM_URL, for example to "
            "http://127.0.0.1:11434/v1, or add `gateway.upstreams` to the file that "
            "GEMINI_MCP_WEB_SEARCH names."
        )
    ids = [entry.id for entry in entries]
    if len(set(ids)) < len(ids):
        raise ConfigError("gateway.upstreams: ids must be unique.")
    defaults = [entry.id for entry in entries if entry.default]
    if len(defaults) > 1:
        raise ConfigError(f"gateway.upstreams: more than one default ({', '.join(defaults)}).")
    upstreams = {entry.id: _build_upstream(entry, environ) for entry in entries}
    default = upstreams[defaults[0]] if defaults else upstreams[ids[0]] if len(ids) == 1 else None
    return Upstreams(tuple(upstreams.values()), default)


def _build_upstream(entry: UpstreamEntry, environ: Mapping[str, str]) -> Upstream:
    key = environ.get(entry.api_key_env, "").strip() if entry.api_key_env else ""
    if not key.isascii() or not key.isprintable():
        raise ConfigError(f"{entry.api_key_env}: an API key must be printable ASCII.")
    return Upstream(
        entry.id,
        entry.base_url.rstrip("/"),
        key or None,
        tuple(entry.models),
        entry.api_key_env,
        entry.pass_authorization,
        entry.responses,
    )
