"""Which API each upstream supports: Responses, or chat completions only."""

import re
import time

from gemini_cli_mcp.gateway.upstream_client import UpstreamRejected
from gemini_cli_mcp.settings.upstreams import Upstream


class UpstreamCapabilities:
    """What upstreams support, as learned from their answers.

    A missing endpoint is tried again after `missing_ttl` seconds.
    """

    def __init__(self, missing_ttl: float) -> None:
        self._missing_ttl = missing_ttl
        self._native: set[str] = set()
        """Upstreams that have answered a Responses request."""
        self._chat_only_since: dict[str, float] = {}

    def supports_responses(self, upstream: Upstream) -> bool:
        """Whether a Responses request is worth trying."""
        if upstream.responses is not None:
            return upstream.responses
        since = self._chat_only_since.get(upstream.id)
        return since is None or time.monotonic() - since >= self._missing_ttl

    def is_native(self, upstream: Upstream) -> bool:
        """Whether the upstream has answered a Responses request before."""
        return upstream.id in self._native

    def mark_native(self, upstream: Upstream) -> None:
        self._native.add(upstream.id)

    def mark_chat_only(self, upstream: Upstream, error: UpstreamRejected) -> None:
        """Remember that the endpoint is missing; re-raise any other rejection."""
        if upstream.responses or self.is_native(upstream) or not is_missing_endpoint(error):
            raise error
        self._chat_only_since[upstream.id] = time.monotonic()


_MISSING_PATH_MESSAGE = re.compile(
    r"(?i)\s*(?:404 )?(?:page |file |route |endpoint |path )?(?:not found|invalid url|unknown "
    r"(?:request )?url|unexpected endpoint|no such (?:route|path|endpoint))"
)


def is_missing_endpoint(rejection: UpstreamRejected) -> bool:
    """Whether the path is missing, as opposed to the model or a stored response."""
    if rejection.status in (405, 501):
        return True
    error = rejection.error_in_body
    return rejection.status == 404 and (
        error is None or bool(_MISSING_PATH_MESSAGE.match(error.message))
    )
