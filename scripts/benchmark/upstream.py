"""A model and a search engine on loopback that answer at once, or as a stream of a second."""

import json
import socket
from collections.abc import AsyncIterator

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

CHUNKS, PAUSE = 50, 0.02
HEAD = {"id": "chatcmpl-1", "created": 1, "model": "m"}
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "web_search", "arguments": '{"query": "blue sky"}'},
}


async def chat(request: Request) -> Response:
    body = await request.json()
    searches = "tools" in body and body["messages"][-1]["role"] == "user"
    if body.get("stream"):
        return StreamingResponse(stream(searches=searches), media_type="text/event-stream")
    message = {"role": "assistant", "content": "Blue."}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return JSONResponse({**HEAD, "object": "chat.completion", "choices": [choice]})


async def stream(*, searches: bool) -> AsyncIterator[str]:
    def event(delta: object, reason: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        chunk = {**HEAD, "object": "chat.completion.chunk", "choices": [choice]}
        return f"data: {json.dumps(chunk)}\n\n"

    if searches:
        yield event({"role": "assistant", "tool_calls": [{"index": 0, **CALL}]})
    else:
        for _ in range(CHUNKS):
            yield event({"content": "blue "})
            await anyio.sleep(PAUSE)
    yield event({}, "tool_calls" if searches else "stop")
    yield "data: [DONE]\n\n"


async def search(request: Request) -> Response:
    hit = {"title": "Blue", "link": "https://a.example/", "content": "Blue."}
    return JSONResponse({"search_result": [hit]})


if __name__ == "__main__":
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    app = Starlette(
        routes=[
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/glm/web_search", search, methods=["POST"]),
        ]
    )
    uvicorn.Server(uvicorn.Config(app, log_level="error", backlog=2048)).run([listening])
