"""Ask the Gemini API for its models: the quickest proof that it is reachable and accepts a key."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import cast

import httpx2

from gemini_cli_mcp.json_values import object_or_empty
from gemini_cli_mcp.providers.gemini.api_route import ApiRoute
from gemini_cli_mcp.sanitize import error_excerpt, secret_values


@dataclass(frozen=True)
class ModelsResponse:
    """What the API answered."""

    status: int
    message: str
    """The API's own words, if it rejected the request."""
    has_models: bool
    """Whether it is a list of models, not for example the login page of a network."""
    clock_error: timedelta
    """How far this machine's clock is ahead of the API's."""


class RouteFailed(Exception):
    """The API could not be reached; the message says why."""


class Inconclusive(Exception):
    """This request cannot show whether the CLI would succeed; the message says why."""


async def request_models(
    route: ApiRoute,
    environ: Mapping[str, str],
    timeout: float,
    key: str | None = None,
    *,
    from_python: bool = False,
) -> ModelsResponse:
    """Request one model as the CLI or, `from_python`, google-genai does: same route, same trust.

    Without a key, only to get an answer.
    """
    headers = {"x-goog-api-key": key} if key else {}
    try:
        context = httpx2.create_ssl_context() if from_python else _node_ssl_context(environ)
        async with httpx2.AsyncClient(
            verify=context, proxy=route.proxy, trust_env=False, timeout=timeout
        ) as client:
            response = await client.get(f"{route.url}/v1beta/models?pageSize=1", headers=headers)
    except httpx2.TransportError as error:
        reason = error_excerpt(str(error), secret_values(environ)) or type(error).__name__
        if "CERTIFICATE_VERIFY_FAILED" in reason:
            raise Inconclusive(reason) from None  # Node may trust other certificates
        raise RouteFailed(reason) from None
    except (httpx2.InvalidURL, httpx2.HTTPError, ValueError, ImportError, OSError) as error:
        raise Inconclusive(type(error).__name__) from None
    content = _parse_json(response)
    message = object_or_empty(content.get("error")).get("message") or response.reason_phrase
    return ModelsResponse(
        response.status_code,
        error_excerpt(str(message), secret_values(environ)),
        "models" in content,
        _clock_error(response),
    )


def _node_ssl_context(environ: Mapping[str, str]) -> ssl.SSLContext:
    """Return a context that trusts what Node trusts: NODE_EXTRA_CA_CERTS, but not SSL_CERT_FILE."""
    context = httpx2.create_ssl_context(trust_env=False)
    if extra := environ.get("NODE_EXTRA_CA_CERTS"):
        context.load_verify_locations(extra)
    return context


def _parse_json(response: httpx2.Response) -> Mapping[str, object]:
    try:
        return object_or_empty(cast("object", response.json()))
    except (ValueError, RecursionError):
        return {}


def _clock_error(response: httpx2.Response) -> timedelta:
    try:
        server_time = parsedate_to_datetime(response.headers["Date"])
    except (KeyError, ValueError):
        return timedelta()
    if server_time.tzinfo is None:
        server_time = server_time.replace(tzinfo=UTC)
    return datetime.now(UTC) - server_time
