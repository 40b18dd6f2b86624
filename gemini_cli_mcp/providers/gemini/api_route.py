"""The route to the API: base URL and proxy, chosen as the CLI chooses them (measured on 0.61)."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

API_URL = "https://generativelanguage.googleapis.com"
PROXY_VARIABLES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy")
"""The CLI uses the first of these for every URL, whatever its scheme; ALL_PROXY it ignores."""


@dataclass(frozen=True)
class ApiRoute:
    """A server, and the proxy on the way to it. As text, it contains no passwords."""

    url: str
    url_variable: str | None = None
    """The variable that sets the URL, if any."""
    proxy: str | None = None
    proxy_variable: str | None = None

    @property
    def summary(self) -> str:
        """The host and the proxy, for an error message."""
        host = without_password(self.url).partition("://")[2].partition("/")[0]
        return f"{host} (via proxy {without_password(self.proxy)})" if self.proxy else host

    def __str__(self) -> str:
        url = without_password(self.url)
        route = f"{url} ({self.url_variable})" if self.url_variable else url.partition("://")[2]
        if self.proxy:
            route += f" via the proxy {without_password(self.proxy)} ({self.proxy_variable})"
        return route


def find_route(environ: Mapping[str, str], auth_type: str | None = None) -> ApiRoute:
    """Return the route of the CLI with this environment and type of sign-in."""
    route = _direct_route(environ, auth_type)
    rules = environ.get("NO_PROXY", environ.get("no_proxy", ""))
    if _matches_cli_rules(rules.strip().lower(), route.url):
        return route
    return _through_proxy(route, environ, PROXY_VARIABLES)


def find_python_route(environ: Mapping[str, str]) -> ApiRoute:
    """Return the route of google-genai, which chooses its proxy like most Python programs."""
    route = _direct_route(environ, None)
    scheme, host, _ = _parse_url(route.url)
    rules = (environ.get("no_proxy") or environ.get("NO_PROXY") or "").lower()
    if _matches_python_rules(rules, host):
        return route
    names = (f"{scheme}_proxy", f"{scheme.upper()}_PROXY", "all_proxy", "ALL_PROXY")
    return _through_proxy(route, environ, names)


def proxy_variable(
    environ: Mapping[str, str], names: Sequence[str] = PROXY_VARIABLES
) -> str | None:
    """Return the name of the variable that the CLI takes its proxy from, if any."""
    return next((name for name in names if environ.get(name)), None)


def is_valid_proxy(proxy: str) -> bool:
    """Return whether the CLI can use this proxy; with any other it does not even start."""
    try:
        parts = urlsplit(proxy.strip())
        has_server = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    is_bare = parts.path in ("", "/") and not parts.query
    return has_server and is_bare and parts.scheme in ("http", "https")


def without_password(url: str) -> str:
    """Return a URL without user name and password; a password may contain any character."""
    scheme, separator, rest = url.rpartition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def _direct_route(environ: Mapping[str, str], auth_type: str | None) -> ApiRoute:
    is_vertex = auth_type == "vertex-ai"
    variable = "GOOGLE_VERTEX_BASE_URL" if is_vertex else "GOOGLE_GEMINI_BASE_URL"
    if url := environ.get(variable, "").strip().rstrip("/"):
        return ApiRoute(url, variable)
    return ApiRoute(_vertex_url(environ) if is_vertex else API_URL)


def _through_proxy(route: ApiRoute, environ: Mapping[str, str], names: Sequence[str]) -> ApiRoute:
    name = proxy_variable(environ, names)
    return replace(route, proxy=environ[name].strip(), proxy_variable=name) if name else route


def _vertex_url(environ: Mapping[str, str]) -> str:
    location = environ.get("GOOGLE_CLOUD_LOCATION", "").strip()
    if location in ("", "global") or environ.get("GOOGLE_API_KEY"):
        return "https://aiplatform.googleapis.com"
    return f"https://{location}-aiplatform.googleapis.com"


def _parse_url(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port; all empty if the URL is invalid."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)
    except ValueError:
        return "", "", 0
    return parts.scheme, (parts.hostname or "").lower(), port


def _matches_cli_rules(rules: str, url: str) -> bool:
    """Apply NO_PROXY as the CLI's library (undici) does: exact hosts, or suffixes like `.x`."""
    _, host, port = _parse_url(url)
    if rules == "*":
        return True
    for rule in filter(None, re.split(r"[,\s]", rules)):
        match = re.fullmatch(r"(.+):(\d+)", rule)
        name, rule_port = (match[1], int(match[2])) if match else (rule, 0)
        is_suffix = name.startswith((".", "*"))
        is_match = host.endswith(name.removeprefix("*")) if is_suffix else host == name
        if is_match and rule_port in (0, port):
            return True
    return False


def _matches_python_rules(rules: str, host: str) -> bool:
    """Apply NO_PROXY as httpx does: a host includes its subdomains."""
    names = [rule.strip() for rule in rules.split(",") if rule.strip()]
    return any(
        name == "*" or host == name or host.endswith(f".{name.lstrip('*.')}") for name in names
    )
