"""The engines file: JSON with comments, validated at startup.

An engine refers to a provider and a model with its providerKey: family, optional account alias
and model, separated by dots. The routing section lists the allowed targets; targets that differ
only in the alias are fallbacks for each other, in order of priority.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field, ValidationError

from gemini_cli_mcp import jsonc
from gemini_cli_mcp.errors import ConfigError
from gemini_cli_mcp.settings.engines import FAMILIES, Engine, Engines, EngineTarget, GlmSettings
from gemini_cli_mcp.settings.upstreams import DEFAULT_GATEWAY, GatewaySettings, StrictModel
from gemini_cli_mcp.settings.validation import describe_problem

MODEL_PREFIXES = ("gemini-", "glm-", "flash", "pro", "auto")
"""Prefixes of model names; anything else after the family is an account alias."""

_Name = Annotated[str, Field(pattern=r"^[\w.:-]{1,64}$")]
_MODEL = re.compile(r"[A-Za-z0-9][\w.:/-]{0,99}", re.ASCII)


class _Engine(StrictModel):
    id: _Name
    provider_key: str = Field(alias="providerKey")
    description: Annotated[str, Field(min_length=1, max_length=500)]
    default: bool = False
    glm: GlmSettings = GlmSettings.model_validate({})


class _WebSearch(StrictModel):
    engines: Annotated[list[_Engine], Field(min_length=1)]
    inject_policy: Literal["selective", "always"] = Field("selective", alias="injectPolicy")


class _Route(StrictModel):
    id: str
    priority: Annotated[float, Field(allow_inf_nan=False)] = 0
    targets: list[str]


class _Routing(BaseModel):
    web_search: list[_Route]


class _Router(BaseModel):
    routing: _Routing


class _Account(StrictModel):
    api_key_env: Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")] = Field(alias="apiKeyEnv")


class _File(BaseModel):
    web_search: _WebSearch | None = Field(None, alias="webSearch")
    gateway: GatewaySettings = DEFAULT_GATEWAY
    router: _Router | None = Field(None, alias="virtualrouter")
    accounts: dict[str, _Account] = Field(default_factory=dict[str, _Account])


def load_engines_file(path: Path, fallback: Engines) -> Engines:
    """Load the engines of a file, or `fallback` if it has none; ConfigError locates problems."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{_ERROR_PREFIX} {path}: cannot read the file ({type(error).__name__})."
        ) from None
    try:
        file = _File.model_validate_json(jsonc.strip_comments(text))
        return (
            _build_engines(file, file.web_search)
            if file.web_search
            else _with_gateway(file, fallback)
        )
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, item['loc'])) or 'the file'}: {describe_problem(item)}"
            for item in error.errors()
        )
        raise ConfigError(f"{_ERROR_PREFIX} {path}: {problems}") from None
    except ValueError as error:
        raise ConfigError(f"{_ERROR_PREFIX} {path}: {error}") from None


_ERROR_PREFIX = "GEMINI_MCP_WEB_SEARCH:"


def _with_gateway(file: _File, engines: Engines) -> Engines:
    if "gateway" not in file.model_fields_set:
        raise ValueError("the file has neither `webSearch` nor `gateway`")
    keys = engines.key_variables | file.gateway.key_variables
    return replace(engines, gateway=file.gateway, key_variables=keys)


def _build_engines(file: _File, web_search: _WebSearch) -> Engines:
    for alias in file.accounts:
        if alias.startswith(MODEL_PREFIXES) or "." in alias or not alias:
            raise ValueError(f"accounts.{alias}: this alias would be mistaken for a model name")
    entries = web_search.engines
    parsed: list[tuple[_Engine, EngineTarget]] = []
    for index, entry in enumerate(entries):
        location = f"webSearch.engines.{index}"
        if entry.id in [other.id for other in entries[:index]]:
            raise ValueError(f"{location}.id: duplicate id {entry.id!r}")
        try:
            parsed.append((entry, parse_provider_key(entry.provider_key, file.accounts)))
        except ValueError as error:
            raise ValueError(f"{location}.providerKey: {error}") from None
    defaults = [entry.id for entry in entries if entry.default]
    if len(defaults) > 1:
        raise ValueError(f"webSearch.engines: more than one default ({', '.join(defaults)})")
    routed = _parse_routing(file)
    for entry, _ in parsed:
        if routed is not None and entry.provider_key not in [key for key, _ in routed]:
            raise ValueError(
                f"webSearch.engines.{entries.index(entry)}.providerKey: {entry.provider_key!r} of "
                f"engine {entry.id!r} is not a target in virtualrouter.routing.web_search"
            )
    routed_targets = [target for _, target in routed or ()]
    only_id = entries[0].id if len(entries) == 1 else None
    targets = [target for _, target in parsed] + routed_targets
    unknown_aliases = {
        target.alias for target in targets if target.alias and not target.key_variable
    }
    return Engines(
        tuple(
            Engine(entry.id, entry.description, _select_targets(target, routed_targets), entry.glm)
            for entry, target in parsed
        ),
        next(iter(defaults), only_id),
        web_search.inject_policy,
        frozenset(account.api_key_env for account in file.accounts.values())
        | file.gateway.key_variables,
        tuple(
            f"the account alias {alias!r} has no entry in `accounts`"
            for alias in sorted(unknown_aliases)
        ),
        file.gateway,
    )


def _parse_routing(file: _File) -> list[tuple[str, EngineTarget]] | None:
    """Return all routed targets, highest priority first; None without a routing section."""
    if file.router is None:
        return None
    routes = sorted(file.router.routing.web_search, key=lambda route: -route.priority)
    targets: list[tuple[str, EngineTarget]] = []
    for route in routes:
        for key in route.targets:
            try:
                targets.append((key, parse_provider_key(key, file.accounts)))
            except ValueError as error:
                raise ValueError(
                    f"virtualrouter.routing.web_search, route {route.id!r}: {error}"
                ) from None
    return targets


def parse_provider_key(provider_key: str, accounts: Mapping[str, _Account]) -> EngineTarget:
    """Parse a providerKey; ValueError says what is wrong with it."""
    name, _, rest = provider_key.partition(".")
    if name not in FAMILIES:
        families = ", ".join(FAMILIES)
        raise ValueError(f"{name[:20]!r} is not a known family ({families})")
    family = name
    alias = None
    if not rest.startswith(MODEL_PREFIXES):
        alias, _, rest = rest.partition(".")
        if not alias:
            raise ValueError(f"{provider_key!r} has neither an account alias nor a model")
    if not rest:
        raise ValueError(f"{provider_key!r} has no model")
    if not _MODEL.fullmatch(rest):
        raise ValueError(f"{rest!r} is not a valid model name")
    account = accounts.get(alias) if alias else None
    return EngineTarget(family, alias or None, rest, account.api_key_env if account else None)


def _select_targets(
    target: EngineTarget, routed_targets: list[EngineTarget]
) -> tuple[EngineTarget, ...]:
    """Return the targets that differ from `target` at most in the account, in routing order."""
    same_model = [
        other
        for other in routed_targets
        if (other.family, other.model) == (target.family, target.model)
    ]
    return tuple(dict.fromkeys(same_model or [target]))
