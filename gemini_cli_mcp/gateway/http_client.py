"""The HTTP client for all requests of a gateway."""

from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx2

HTTP_TIMEOUT = httpx2.Timeout(600.0, connect=10.0)
"""Seconds without a byte; models that reason, or are loaded first, take minutes."""


class _NoCookies(DefaultCookiePolicy):
    """Rejects all cookies, so that none leaks from one client to another."""

    def set_ok(self, cookie: object, request: object) -> bool:
        return False


def create_http_client() -> httpx2.AsyncClient:
    """Create the HTTP client for all requests of a gateway; loopback bypasses proxies."""
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=64)
    direct = dict.fromkeys(["all://localhost", "all://127.0.0.1", "all://[::1]"])
    return httpx2.AsyncClient(
        timeout=HTTP_TIMEOUT, limits=limits, mounts=direct, cookies=CookieJar(_NoCookies())
    )
