"""A Messages API on loopback: its model calls one MCP tool and then repeats what it returned."""

import json
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = dict[str, Any]


@dataclass
class ScriptedModel:
    """Calls `tool` with `arguments`, and answers with the text of the result."""

    tool: str
    arguments: Json
    url: str = ""
    tools: set[str] = field(default_factory=set[str])
    """The tools that the client offered."""
    tool_results: list[str] = field(default_factory=list[str])

    def reply(self, request: Json) -> Json:
        """Return the next content block."""
        names = {tool["name"] for tool in request.get("tools", [])}
        self.tools |= names
        results = [
            block
            for message in request["messages"]
            if message["role"] == "user" and isinstance(message["content"], list)
            for block in message["content"]
            if block["type"] == "tool_result"
        ]
        if results:
            text = _text(results[-1]["content"])
            self.tool_results.append(text)
            return {"type": "text", "text": text}
        if self.tool in names:
            return {"type": "tool_use", "id": "call_1", "name": self.tool, "input": self.arguments}
        return {"type": "text", "text": f"There is no tool called {self.tool}."}


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(block.get("text", "") for block in content)


class _Handler(BaseHTTPRequestHandler):
    model: ScriptedModel

    def do_HEAD(self) -> None:
        self._send("text/plain", b"")

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        block = self.model.reply(request)
        message = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": request["model"],
            "content": [block],
            "stop_reason": "tool_use" if block["type"] == "tool_use" else "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }
        if request.get("stream"):
            events = "".join(
                f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"
                for event in _stream_events(message, block)
            )
            self._send("text/event-stream", events.encode())
        else:
            self._send("application/json", json.dumps(message).encode())

    def _send(self, content_type: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002, its name in the base class
        pass


def _stream_events(message: Json, block: Json) -> Iterator[Json]:
    start: Json = {**message, "content": [], "stop_reason": None}
    yield {"type": "message_start", "message": start}
    if block["type"] == "tool_use":
        empty: Json = {**block, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
    else:
        empty = {**block, "text": ""}
        delta = {"type": "text_delta", "text": block["text"]}
    yield {"type": "content_block_start", "index": 0, "content_block": empty}
    yield {"type": "content_block_delta", "index": 0, "delta": delta}
    yield {"type": "content_block_stop", "index": 0}
    end = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": end, "usage": message["usage"]}
    yield {"type": "message_stop"}


@contextmanager
def serve_messages_api(model: ScriptedModel) -> Generator[None]:
    """Serve the model on a free port while the context is open, and set its `url`."""
    handler = type("Handler", (_Handler,), {"model": model})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        model.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()
