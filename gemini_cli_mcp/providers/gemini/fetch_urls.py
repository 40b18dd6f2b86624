"""Find the URLs that a fetch call requests, exactly as the CLI finds them in the call's prompt."""

from urllib.parse import quote, urlsplit

_SAFE_IN_PATH = "!$%&'()*+,-./:;=@[]_|~"
_SAFE_IN_QUERY = "!$%&()*+,-./:;=?@[]_`{|}~^\\"
"""Characters that a browser does not percent-encode in a path and in a query."""


def requested_urls(prompt: str) -> list[str]:
    """Return the URLs in the prompt of a fetch call.

    A URL is any word that contains `://` and is an HTTP(S) URL from its first character on.
    """
    words = prompt.split()
    return [url for word in words if "://" in word and (url := _normalize_url(word))]


def _normalize_url(word: str) -> str | None:
    """Return the URL as a browser normalizes it; None if the word is not an HTTP(S) URL."""
    try:
        parts = urlsplit(word)
        host = parts.hostname or ""
        if parts.scheme not in ("http", "https") or not host or "@" in parts.netloc:
            return None
        port = "" if parts.port in (None, {"http": 80, "https": 443}[parts.scheme]) else parts.port
    except ValueError:
        return None
    url = f"{parts.scheme}://{host}{f':{port}' if port else ''}"
    url += quote(parts.path, safe=_SAFE_IN_PATH) or "/"
    query, fragment = (quote(part, safe=_SAFE_IN_QUERY) for part in (parts.query, parts.fragment))
    return url + (f"?{query}" if query else "") + (f"#{fragment}" if fragment else "")
