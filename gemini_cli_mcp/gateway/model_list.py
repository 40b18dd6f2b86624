"""List the models of all upstreams, or of those that answer in time."""

from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import quote

import anyio

from gemini_cli_mcp.gateway.passthrough import pass_through
from gemini_cli_mcp.gateway.response_writer import ResponseWriter
from gemini_cli_mcp.gateway.upstream_client import (
    UpstreamClient,
    UpstreamUnavailable,
    parse_json,
    read_all,
)
from gemini_cli_mcp.json_values import list_or_empty, object_or_empty

MODELS_PATH = "/models"


async def list_models(clients: Sequence[UpstreamClient], writer: ResponseWriter) -> None:
    """Merge the lists of all upstreams; with only one, pass its answer through."""
    if len(clients) == 1:
        await pass_through("GET", clients[0], MODELS_PATH, writer)
        return
    models_by_upstream: dict[str, list[object]] = {}

    async def fetch_models(client: UpstreamClient) -> None:
        with (
            anyio.move_on_after(client.limits.upstream_models_timeout),
            suppress(UpstreamUnavailable),
        ):
            models_by_upstream[client.upstream.id] = await _fetch_models(client)

    async with anyio.create_task_group() as tasks:
        for client in clients:
            tasks.start_soon(fetch_models, client)
    if not models_by_upstream:
        raise UpstreamUnavailable("None of the upstreams returned its models.")
    models = [
        model for client in clients for model in models_by_upstream.get(client.upstream.id, [])
    ]
    await writer.send_json(200, [], {"object": "list", "data": models})


async def show_model(client: UpstreamClient, model: str, writer: ResponseWriter) -> None:
    await pass_through("GET", client, f"{MODELS_PATH}/{quote(model)}", writer)


async def _fetch_models(client: UpstreamClient) -> list[object]:
    """Return the models that this upstream is configured to serve."""
    async with client.stream_raw("GET", MODELS_PATH) as response:
        content = await read_all(response.aiter_bytes(), client.limits)
    models = [object_or_empty(model) for model in list_or_empty(parse_json(content).get("data"))]
    return [model for model in models if client.upstream.serves(str(model.get("id")))]
