"""The route to the API: base URL and proxy, chosen as the CLI chooses them (measured on 0.61)."""

import re
from collections.abc import Mapping
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

    def __str__(self) -> str:
        url = without_password(self.url)
        route = f"{url} ({self.url_variable})" if self.url_variable else url.partition("://")[2]
        if self.proxy:
            route += f" via the proxy {without_password(self.proxy)} ({self.proxy_variable})"
        return route


def find_route(environ: Mapping[str, str], auth_type: str | None = None) -> ApiRoute:
    """Return the route of runs with this environment and type of sign-in."""
    variable = "GOOGLE_VERTEX_BASE_URL" if auth_type == "vertex-ai" else "GOOGLE_GEMINI_BASE_URL"
    default_url = _vertex_url(environ) if auth_type == "vertex-ai" else API_URL
    custom_url = environ.get(variable, "").strip().rstrip("/")
    url = custom_url or default_url
    route = ApiRoute(url, variable if custom_url else None)
    name = proxy_variable(environ)
    if name is None or _bypasses_proxy(url, environ):
        return route
    return replace(route, proxy=environ[name].strip(), proxy_variable=name)


def find_python_route(environ: Mapping[str, str]) -> ApiRoute:
    """Return the route of google-genai, which chooses its proxy like most Python programs."""
    route = find_route({**environ, **dict.fromkeys(PROXY_VARIABLES, "")})
    parts = urlsplit(route.url)
    names = (f"{parts.scheme}_proxy", f"{parts.scheme.upper()}_PROXY", "all_proxy", "ALL_PROXY")
    name = next((name for name in names if environ.get(name)), None)
    excluded = [rule.strip() for rule in _first(environ, "no_proxy", "NO_PROXY").split(",")]
    host = (parts.hostname or "").lower()
    is_excluded = any(
        rule == "*" or host == rule or host.endswith(f".{rule.lstrip('*.')}")
        for rule in filter(None, excluded)
    )
    if name is None or is_excluded:
        return route
    return replace(route, proxy=environ[name].strip(), proxy_variable=name)


def _first(environ: Mapping[str, str], *names: str) -> str:
    return next((environ[name] for name in names if environ.get(name)), "")


def proxy_variable(environ: Mapping[str, str]) -> str | None:
    """Return the name of the variable that the CLI takes its proxy from, if any."""
    return next((name for name in PROXY_VARIABLES if environ.get(name)), None)


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


def _vertex_url(environ: Mapping[str, str]) -> str:
    location = environ.get("GOOGLE_CLOUD_LOCATION", "").strip()
    has_region = location not in ("", "global") and not environ.get("GOOGLE_API_KEY")
    return (
        f"https://{location}-aiplatform.googleapis.com"
        if has_region
        else ("https://aiplatform.googleapis.com")
    )


def _bypasses_proxy(url: str, environ: Mapping[str, str]) -> bool:
    """Return whether NO_PROXY excludes this URL, by the rules of the library that the CLI uses."""
    rules = environ.get("NO_PROXY", environ.get("no_proxy", "")).strip()
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)
    except ValueError:
        return False
    host = (parts.hostname or "").lower()
    if rules == "*":
        return True
    for rule in filter(None, re.split(r"[,\s]", rules.lower())):
        match = re.fullmatch(r"(.+):(\d+)", rule)
        name, rule_port = (match[1], int(match[2])) if match else (rule, 0)
        if rule_port in (0, port) and (
            host.endswith(name.removeprefix("*")) if name[0] in ".*" else host == name
        ):
            return True
    return False
