"""What each upstream turned out to support: the Responses API, or chat completions only."""

import re
import time

from gemini_cli_mcp.gateway.upstream_client import UpstreamRejected
from gemini_cli_mcp.settings.upstreams import Upstream


class UpstreamCapabilities:
    """Learned from answers; a missing endpoint is tried again after `missing_ttl` seconds."""

    def __init__(self, missing_ttl: float) -> None:
        self._missing_ttl = missing_ttl
        self._native: set[str] = set()
        """Upstreams that have answered a Responses request."""
        self._chat_only_since: dict[str, float] = {}

    def supports_responses(self, upstream: Upstream) -> bool:
        """Whether it is worth trying."""
        if upstream.responses is not None:
            return upstream.responses
        since = self._chat_only_since.get(upstream.id)
        return since is None or time.monotonic() - since >= self._missing_ttl

    def is_native(self, upstream: Upstream) -> bool:
        """Whether it has answered a Responses request before."""
        return upstream.id in self._native

    def mark_native(self, upstream: Upstream) -> None:
        self._native.add(upstream.id)

    def mark_chat_only(self, upstream: Upstream, error: UpstreamRejected) -> None:
        """Remember that the endpoint is missing; raise any other rejection."""
        if upstream.responses or self.is_native(upstream) or not is_missing_endpoint(error):
            raise error
        self._chat_only_since[upstream.id] = time.monotonic()


_NO_PATH = re.compile(
    r"(?i)\s*(?:404 )?(?:page |file |route |endpoint |path )?(?:not found|invalid url|unknown "
    r"(?:request )?url|unexpected endpoint|no such (?:route|path|endpoint))"
)


def is_missing_endpoint(rejection: UpstreamRejected) -> bool:
    """Whether an upstream has no such path, as opposed to no such model or stored response."""
    if rejection.status in (405, 501):
        return True
    message = rejection.error_message
    return rejection.status == 404 and (message is None or bool(_NO_PATH.match(message)))
