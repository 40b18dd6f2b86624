"""A model and a search engine on loopback that answer immediately, or stream for one second."""

import json
import socket
from collections.abc import AsyncIterator

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

CHUNKS, CHUNK_SECONDS = 50, 0.02
COMMON_FIELDS = {"id": "chatcmpl-1", "created": 1, "model": "m"}
SEARCH_TOOL_CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "web_search", "arguments": '{"query": "blue sky"}'},
}


async def chat(request: Request) -> Response:
    body = await request.json()
    must_search = "tools" in body and body["messages"][-1]["role"] == "user"
    if body.get("stream"):
        return StreamingResponse(stream(must_search=must_search), media_type="text/event-stream")
    message = {"role": "assistant", "content": "Blue."}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return JSONResponse({**COMMON_FIELDS, "object": "chat.completion", "choices": [choice]})


async def stream(*, must_search: bool) -> AsyncIterator[str]:
    def event(delta: object, finish_reason: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        chunk = {**COMMON_FIELDS, "object": "chat.completion.chunk", "choices": [choice]}
        return f"data: {json.dumps(chunk)}\n\n"

    if must_search:
        yield event({"role": "assistant", "tool_calls": [{"index": 0, **SEARCH_TOOL_CALL}]})
    else:
        for _ in range(CHUNKS):
            yield event({"content": "blue "})
            await anyio.sleep(CHUNK_SECONDS)
    yield event({}, "tool_calls" if must_search else "stop")
    yield "data: [DONE]\n\n"


async def search(request: Request) -> Response:
    hit = {"title": "Blue", "link": "https://a.example/", "content": "Blue."}
    return JSONResponse({"search_result": [hit]})


if __name__ == "__main__":
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    app = Starlette(
        routes=[
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/glm/web_search", search, methods=["POST"]),
        ]
    )
    uvicorn.Server(uvicorn.Config(app, log_level="error", backlog=2048)).run([listener])
