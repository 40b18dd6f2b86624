"""Ask the Gemini API for its models: the quickest proof that it is reachable and accepts a key."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import cast

import httpx2

from gemini_cli_mcp.json_values import object_or_empty
from gemini_cli_mcp.sanitize import error_excerpt, redact, secret_values

API_URL = "https://generativelanguage.googleapis.com"
PROXY_VARIABLES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY")


@dataclass(frozen=True)
class ModelsResponse:
    """What the API answered."""

    status: int
    message: str
    """The API's own words, if it rejected the request."""
    clock_error: timedelta
    """How far this machine's clock is ahead of the API's."""


class ConnectionFailed(Exception):
    """The API could not be reached; the message says why."""


class NotSupported(Exception):
    """This request cannot show whether the CLI would succeed; the message says why."""


def base_url(environ: Mapping[str, str]) -> str:
    return (environ.get("GOOGLE_GEMINI_BASE_URL") or API_URL).rstrip("/")


def describe_route(environ: Mapping[str, str]) -> str:
    """Return which server requests go to, and through which proxy, without passwords."""
    url = base_url(environ)
    route = url.partition("://")[2] if url == API_URL else f"{url} (GOOGLE_GEMINI_BASE_URL)"
    if name := proxy_variable(environ):
        route += f" via the proxy {environ[name]} ({name})"
    return redact(route, secret_values(environ))


def proxy_variable(environ: Mapping[str, str]) -> str | None:
    """Return the name of the variable that sets the proxy for the API, if any."""
    is_https = base_url(environ).startswith("https:")
    names = PROXY_VARIABLES if is_https else PROXY_VARIABLES[2:]
    return next((name for name in names if environ.get(name)), None)


async def request_models(environ: Mapping[str, str], timeout: float) -> ModelsResponse:
    """Request one model with GEMINI_API_KEY, along the route that the CLI uses."""
    headers = {"x-goog-api-key": environ["GEMINI_API_KEY"].strip()}
    try:
        async with httpx2.AsyncClient(verify=_ssl_context(environ), timeout=timeout) as client:
            response = await client.get(
                f"{base_url(environ)}/v1beta/models?pageSize=1", headers=headers
            )
    except httpx2.TransportError as error:
        reason = error_excerpt(str(error), secret_values(environ)) or type(error).__name__
        if "CERTIFICATE_VERIFY_FAILED" in reason:
            raise NotSupported(reason) from None  # Node may trust other certificates
        raise ConnectionFailed(reason) from None
    except (httpx2.InvalidURL, httpx2.HTTPError, ValueError, ImportError, OSError) as error:
        # For example a SOCKS proxy, or an invalid key that cannot be a header.
        raise NotSupported(type(error).__name__) from None
    return ModelsResponse(
        response.status_code, _error_message(response, environ), _clock_error(response)
    )


def _ssl_context(environ: Mapping[str, str]) -> ssl.SSLContext:
    """Return a context that trusts what Node trusts: also NODE_EXTRA_CA_CERTS."""
    context = httpx2.create_ssl_context()
    if extra := environ.get("NODE_EXTRA_CA_CERTS"):
        context.load_verify_locations(extra)
    return context


def _error_message(response: httpx2.Response, environ: Mapping[str, str]) -> str:
    try:
        content = object_or_empty(cast("object", response.json()))
    except ValueError:
        content = {}
    message = object_or_empty(content.get("error")).get("message")
    return error_excerpt(str(message or response.reason_phrase), secret_values(environ))


def _clock_error(response: httpx2.Response) -> timedelta:
    try:
        server_time = parsedate_to_datetime(response.headers["Date"])
    except (KeyError, ValueError):
        return timedelta()
    return datetime.now(UTC) - server_time
