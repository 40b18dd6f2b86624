"""A scripted OpenAI-compatible upstream with a web search engine.

Each model has its own script, so that one gateway can serve all tests.
"""

import json
import socket
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support import native_responses as native
from tests.support.fake_api import POLL_INTERVAL

SEARCH_QUESTION = "Search the web for the blue sky"
"""A user message that asks for a search."""
USAGE: Any = {
    "prompt_tokens": 10,
    "completion_tokens": 5,
    "total_tokens": 15,
    "prompt_tokens_details": {"cached_tokens": 1},
}


def call(name: str = "web_search", arguments: object = None, call_id: str = "call_1") -> Any:
    """Return a tool call as it appears in a message; `arguments` may be any value."""
    if arguments is None:
        arguments = json.dumps({"query": "blue sky"})
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def search(query: str, call_id: str = "call_1", **arguments: object) -> Any:
    return call(
        "web_search", json.dumps({"query": query, **arguments}, ensure_ascii=False), call_id
    )


@dataclass
class ScriptedReply:
    """One reply of the upstream."""

    text: str | None = None
    calls: list[Any] = field(default_factory=list[Any])
    items: list[Any] = field(default_factory=list[Any])
    """Further complete output items of a response."""
    status_at_end: str = ""
    """The final status of a response, instead of `completed`."""
    thought: str = ""
    """Reasoning before the text."""
    reason: str | None = None
    status: int = 200
    body: bytes | None = None
    """A raw body that replaces the reply."""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    pieces: list[bytes] | None = None
    """The raw chunks of a stream."""
    deltas: list[Any] | None = None
    """The deltas of a stream."""
    cut: bool = False
    """Whether the upstream disconnects in the middle."""
    delay: float = 0.0
    pause: float = 0.0
    """Seconds between the chunks of a stream."""
    extra: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def finish_reason(self) -> str:
        return self.reason or ("tool_calls" if self.calls else "stop")


class ScriptedUpstream:
    """Scripts and received requests by model, and engine delays and failures by query."""

    def __init__(self) -> None:
        self.scripts: dict[str, list[ScriptedReply]] = {}
        self.requests: dict[str, list[Any]] = {}
        self.headers: dict[str, list[dict[str, str]]] = {}
        self.contents: list[bytes] = []
        """The raw bodies of all requests."""
        self.paths: list[str] = []
        self.queries: list[str] = []
        self.search_counts: list[int] = []
        self.engine_delays: dict[str, float] = {}
        self.engine_failures: dict[str, tuple[int, Any]] = {}
        self.disconnected: list[str] = []
        """Models and queries whose client disconnected early."""
        self.address = ""

    def plays(self, model: str, *replies: ScriptedReply) -> None:
        """Play the next reply for each request to this model, and repeat the last one."""
        self.scripts[model] = list(replies)

    def next(self, model: str, body: Any, headers: dict[str, str]) -> ScriptedReply:
        self.requests.setdefault(model, []).append(body)
        self.headers.setdefault(model, []).append(headers)
        script = self.scripts.get(model) or [ScriptedReply("Hello.")]
        return script.pop(0) if len(script) > 1 else script[0]

    def url_of(self, query: str) -> str:
        """Return the URL of the engine's hit for this query."""
        return f"https://pages.example/{query.replace(' ', '-')}"


def chat_deltas(reply: ScriptedReply) -> list[Any]:
    """Return the deltas of a reply: the text in pieces, each call in two."""
    if reply.deltas is not None:
        return reply.deltas
    text = reply.text or ""
    deltas: list[Any] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning_content": reply.thought}] if reply.thought else []
    deltas += [{"content": text[start : start + 4]} for start in range(0, len(text), 4)]
    for index, item in enumerate(reply.calls):
        arguments = item["function"]["arguments"]
        if not isinstance(arguments, str):
            deltas.append({"tool_calls": [{"index": index, **item}]})
            continue
        middle = len(arguments) // 2
        first_half = {"name": item["function"]["name"], "arguments": arguments[:middle]}
        deltas.append({"tool_calls": [{"index": index, **item, "function": first_half}]})
        second_half = {"arguments": arguments[middle:]}
        deltas.append({"tool_calls": [{"index": index, "function": second_half}]})
    return deltas


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    upstream: ScriptedUpstream

    def do_GET(self) -> None:
        self.upstream.paths.append(self.path)
        models = [
            {"id": name, "object": "model", "created": 1, "owned_by": "test"} for name in "ab"
        ]
        self._send(200, json.dumps({"object": "list", "data": models}).encode())

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["content-length"]))
        self.upstream.contents.append(content)
        body = json.loads(content)
        try:
            if self.path.startswith("/glm/"):
                self._search(body)
            elif self.path.startswith("/v1/responses"):  # only /native has this API
                self._send(404, b"404 page not found", {"content-type": "text/plain"})
            else:
                self._send_reply(body)
        except OSError:
            self.upstream.disconnected.append(str(body.get("model") or body.get("search_query")))

    def _search(self, body: Any) -> None:
        query = body["search_query"]
        self.upstream.search_counts.append(body["count"])
        self.upstream.queries.append(query)
        self._wait(self.upstream.engine_delays.get(query, 0))
        if query in self.upstream.engine_failures:
            status, failure = self.upstream.engine_failures[query]
            self._send(status, json.dumps(failure).encode())
            return
        hit = {"title": f"About {query}", "link": self.upstream.url_of(query), "content": "Words."}
        self._send(200, json.dumps({"search_result": [hit]}).encode())

    def _send_reply(self, body: Any) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        reply = self.upstream.next(body["model"], body, headers)
        self._wait(reply.delay)
        if reply.status != 200 or reply.body is not None:
            self._send(reply.status, reply.body or b"{}", reply.headers)
        elif self.path.startswith("/native/v1/responses"):
            self._send_responses_reply(body, reply)
        elif body.get("stream"):
            self._stream_completion(body, reply)
        else:
            self._send_completion(body, reply)

    def _send_completion(self, body: Any, reply: ScriptedReply) -> None:
        message = {"role": "assistant", "content": reply.text, "refusal": None, **reply.extra}
        if reply.calls:
            message["tool_calls"] = reply.calls
        if reply.thought:
            message["reasoning_content"] = reply.thought
        completion = {
            "id": f"chatcmpl-{len(self.upstream.requests[body['model']])}",
            "object": "chat.completion",
            "created": 1_700_000_000,
            "model": body["model"],
            "choices": [
                {
                    "index": 0,
                    "message": message,
                    "finish_reason": reply.finish_reason,
                    "logprobs": None,
                }
            ],
            "usage": USAGE,
        }
        self._send_json(completion, reply)

    def _send_responses_reply(self, body: Any, reply: ScriptedReply) -> None:
        events = native.events(body, reply, len(self.upstream.requests[body["model"]]))
        if not body.get("stream"):
            self._send_json(events[-1]["response"], reply)
            return
        lines = [(event["type"], json.dumps(event, ensure_ascii=False)) for event in events]
        data = [f"event: {name}\ndata: {text}\n\n".encode() for name, text in lines]
        self._send_stream(data, reply)

    def _send_json(self, value: Any, reply: ScriptedReply) -> None:
        data = json.dumps(value).encode()
        if reply.cut:
            self.send_response(200)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2])
            self._disconnect()
        else:
            self._send(200, data, reply.headers)

    def _stream_completion(self, body: Any, reply: ScriptedReply) -> None:
        self._send_stream(self._chat_events(body, reply), reply)

    def _send_stream(self, default_pieces: list[bytes], reply: ScriptedReply) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.end_headers()
        pieces = reply.pieces if reply.pieces is not None else default_pieces
        for piece in pieces[: len(pieces) // 2] if reply.cut else pieces:
            self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            self.wfile.flush()
            self._wait(reply.pause)
        if reply.cut:
            self._disconnect()
        else:
            self.wfile.write(b"0\r\n\r\n")

    def _chat_events(self, body: Any, reply: ScriptedReply) -> list[bytes]:
        head = {
            "id": f"chatcmpl-{len(self.upstream.requests[body['model']])}",
            "object": "chat.completion.chunk",
            "created": 1_700_000_000,
            "model": body["model"],
        }
        chunks = [
            {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
            for delta in chat_deltas(reply)
        ]
        final_choice: Any = {"index": 0, "delta": {}, "finish_reason": reply.finish_reason}
        chunks.append({**head, "choices": [final_choice]})
        if body.get("stream_options", {}).get("include_usage"):
            chunks.append({**head, "choices": [], "usage": USAGE})
        data = [f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n".encode() for chunk in chunks]
        return [*data, b"data: [DONE]\n\n"]

    def _wait(self, seconds: float) -> None:
        """Wait; raise if the client disconnects meanwhile."""
        self.connection.settimeout(0.05)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with suppress(TimeoutError):
                if self.connection.recv(1, socket.MSG_PEEK) == b"":
                    raise ConnectionAbortedError
                time.sleep(0.05)
        self.connection.settimeout(None)

    def _disconnect(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _send(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"content-type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def handle_error(self, request: object, client_address: object) -> None:
        pass


@contextmanager
def scripted_upstream() -> Generator[ScriptedUpstream]:
    upstream = ScriptedUpstream()
    handler = type("Handler", (_Handler,), {"upstream": upstream})
    server = _Server(("127.0.0.1", 0), handler)
    upstream.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(POLL_INTERVAL,), daemon=True)
    thread.start()
    try:
        yield upstream
    finally:
        server.shutdown()
        server.server_close()
