"""The engines of `web_search`: what a caller can choose, and what serves it."""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import Field

from gemini_cli_mcp.settings.upstreams import DEFAULT_GATEWAY, GatewaySettings, StrictModel

Family = Literal["gemini-cli", "antigravity", "gemini-api", "glm"]
GOOGLE_FAMILIES: tuple[Family, ...] = ("gemini-cli", "antigravity", "gemini-api")
"""Families that search with Google."""
FAMILIES: tuple[Family, ...] = (*GOOGLE_FAMILIES, "glm")
RECENCY_DAYS = {"oneDay": 1, "oneWeek": 7, "oneMonth": 31, "oneYear": 366, "noLimit": None}
"""Maximum age of hits in days, by `recency`."""
MAX_HITS = 50
DEFAULT_HITS = 10
FAMILY_BY_PROVIDER: dict[str, Family] = {
    "gemini": "gemini-cli",
    "antigravity": "antigravity",
    "api": "gemini-api",
}


class GlmSettings(StrictModel):
    """Settings of the family `glm`."""

    form: Literal["chat", "api"] = "chat"
    search_engine: str = Field("search_std", alias="searchEngine")
    base_url: Annotated[str, Field(pattern=r"^https?://[\w.:-]+(?:/[\w./~-]*)?$")] = Field(
        "https://api.z.ai/api/paas/v4", alias="baseUrl"
    )


@dataclass(frozen=True)
class EngineTarget:
    """What serves an engine: a family, an optional account and a model."""

    family: Family
    alias: str | None
    model: str
    key_variable: str | None = None
    """The environment variable with the account's API key."""


@dataclass(frozen=True)
class Engine:
    """An engine that callers can choose, with its targets in order of preference."""

    id: str
    description: str
    targets: tuple[EngineTarget, ...]
    glm: GlmSettings


@dataclass(frozen=True)
class Engines:
    """All configured engines, and the gateway settings of the same file."""

    engines: tuple[Engine, ...]
    default: str | None
    """The engine for calls that do not specify one; None if they must."""
    inject_policy: str = "selective"
    key_variables: frozenset[str] = frozenset()
    warnings: tuple[str, ...] = ()
    """Settings that are valid but have no effect."""
    gateway: GatewaySettings = DEFAULT_GATEWAY

    @property
    def google_only(self) -> "Engines":
        """Only the engines that search with Google, or all if there are none."""
        matches = tuple(
            engine
            for engine in self.engines
            if engine.targets[0].family in GOOGLE_FAMILIES or "google" in engine.id.lower()
        )
        if not matches:
            return self
        only_id = matches[0].id if len(matches) == 1 else None
        default = self.default if self.default in [engine.id for engine in matches] else only_id
        return replace(self, engines=matches, default=default)

    def get(self, engine_id: str) -> Engine | None:
        return next((engine for engine in self.engines if engine.id == engine_id), None)


def default_engines(provider: str, model: str) -> Engines:
    """Return the single engine that is used without an engines file."""
    target = EngineTarget(FAMILY_BY_PROVIDER[provider], None, model)
    engine = Engine("google", "Google Search", (target,), GlmSettings.model_construct())
    return Engines((engine,), "google")
