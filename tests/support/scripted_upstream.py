"""An OpenAI-compatible upstream, and a web search engine beside it, that play what a test says.

Each model has a script of its own, so that one gateway serves all tests.
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
from tests.support.fake_api import POLL

SEARCH_QUESTION = "Search the web for the blue sky"
"""Words of a user that ask for a search."""
USAGE: Any = {
    "prompt_tokens": 10,
    "completion_tokens": 5,
    "total_tokens": 15,
    "prompt_tokens_details": {"cached_tokens": 1},
}


def call(name: str = "web_search", arguments: object = None, call_id: str = "call_1") -> Any:
    """A tool call as a message has it; `arguments` may be anything."""
    if arguments is None:
        arguments = json.dumps({"query": "blue sky"})
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def search(query: str, call_id: str = "call_1", **more: object) -> Any:
    return call("web_search", json.dumps({"query": query, **more}, ensure_ascii=False), call_id)


@dataclass
class ScriptedReply:
    """One answer of the upstream."""

    text: str | None = None
    calls: list[Any] = field(default_factory=list[Any])
    items: list[Any] = field(default_factory=list[Any])
    """More items of a response, whole."""
    status_at_end: str = ""
    """How a response ends, if not well."""
    thought: str = ""
    """What it thinks before it speaks."""
    reason: str | None = None
    status: int = 200
    body: bytes | None = None
    """Sent instead of an answer."""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    pieces: list[bytes] | None = None
    """What a stream consists of, byte for byte."""
    deltas: list[Any] | None = None
    """The deltas of a stream."""
    cut: bool = False
    """Goes away in the middle."""
    delay: float = 0.0
    pause: float = 0.0
    """Seconds between the chunks of a stream."""
    extra: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def finish_reason(self) -> str:
        return self.reason or ("tool_calls" if self.calls else "stop")


class ScriptedUpstream:
    """Scripts by model, and what was asked of each; engine results by query."""

    def __init__(self) -> None:
        self.scripts: dict[str, list[ScriptedReply]] = {}
        self.asked: dict[str, list[Any]] = {}
        self.headers: dict[str, list[dict[str, str]]] = {}
        self.contents: list[bytes] = []
        """The bodies of all requests, byte for byte."""
        self.paths: list[str] = []
        self.searched: list[str] = []
        self.counts: list[int] = []
        self.engine_delays: dict[str, float] = {}
        self.engine_failures: dict[str, tuple[int, Any]] = {}
        self.left: list[str] = []
        """Models and queries whose client went away before the end."""
        self.address = ""

    def plays(self, model: str, *replies: ScriptedReply) -> None:
        """For each request of this model the next one; the last one goes on."""
        self.scripts[model] = list(replies)

    def next(self, model: str, body: Any, headers: dict[str, str]) -> ScriptedReply:
        self.asked.setdefault(model, []).append(body)
        self.headers.setdefault(model, []).append(headers)
        script = self.scripts.get(model) or [ScriptedReply("Hello.")]
        return script.pop(0) if len(script) > 1 else script[0]

    def url_of(self, query: str) -> str:
        """Where the engine says it found something for this query."""
        return f"https://pages.example/{query.replace(' ', '-')}"


def chunks(says: ScriptedReply) -> list[Any]:
    """The deltas of an answer: text in pieces, each call in two."""
    if says.deltas is not None:
        return says.deltas
    text = says.text or ""
    made: list[Any] = [{"role": "assistant", "content": ""}]
    made += [{"reasoning_content": says.thought}] if says.thought else []
    made += [{"content": text[at : at + 4]} for at in range(0, len(text), 4)]
    for index, item in enumerate(says.calls):
        arguments = item["function"]["arguments"]
        if not isinstance(arguments, str):
            made.append({"tool_calls": [{"index": index, **item}]})
            continue
        middle = len(arguments) // 2
        named = {"name": item["function"]["name"], "arguments": arguments[:middle]}
        made.append({"tool_calls": [{"index": index, **item, "function": named}]})
        rest = {"arguments": arguments[middle:]}
        made.append({"tool_calls": [{"index": index, "function": rest}]})
    return made


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    script: ScriptedUpstream

    def do_GET(self) -> None:
        self.script.paths.append(self.path)
        models = [
            {"id": name, "object": "model", "created": 1, "owned_by": "test"} for name in "ab"
        ]
        self._send(200, json.dumps({"object": "list", "data": models}).encode())

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["content-length"]))
        self.script.contents.append(content)
        body = json.loads(content)
        try:
            if self.path.startswith("/glm/"):
                self._search(body)
            elif self.path.startswith("/v1/responses"):  # only /native knows them
                self._send(404, b"404 page not found", {"content-type": "text/plain"})
            else:
                self._complete(body)
        except OSError:
            self.script.left.append(str(body.get("model") or body.get("search_query")))

    def _search(self, body: Any) -> None:
        query = body["search_query"]
        self.script.counts.append(body["count"])
        self.script.searched.append(query)
        self._wait(self.script.engine_delays.get(query, 0))
        if query in self.script.engine_failures:
            status, told = self.script.engine_failures[query]
            self._send(status, json.dumps(told).encode())
            return
        hit = {"title": f"About {query}", "link": self.script.url_of(query), "content": "Words."}
        self._send(200, json.dumps({"search_result": [hit]}).encode())

    def _complete(self, body: Any) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        says = self.script.next(body["model"], body, headers)
        self._wait(says.delay)
        if says.status != 200 or says.body is not None:
            self._send(says.status, says.body or b"{}", says.headers)
        elif self.path.startswith("/native/v1/responses"):
            self._respond(body, says)
        elif body.get("stream"):
            self._stream(body, says)
        else:
            self._whole(body, says)

    def _whole(self, body: Any, says: ScriptedReply) -> None:
        message = {"role": "assistant", "content": says.text, "refusal": None, **says.extra}
        if says.calls:
            message["tool_calls"] = says.calls
        if says.thought:
            message["reasoning_content"] = says.thought
        answer = {
            "id": f"chatcmpl-{len(self.script.asked[body['model']])}",
            "object": "chat.completion",
            "created": 1_700_000_000,
            "model": body["model"],
            "choices": [
                {
                    "index": 0,
                    "message": message,
                    "finish_reason": says.finish_reason,
                    "logprobs": None,
                }
            ],
            "usage": USAGE,
        }
        self._send_whole(answer, says)

    def _respond(self, body: Any, says: ScriptedReply) -> None:
        made = native.events(body, says, len(self.script.asked[body["model"]]))
        if not body.get("stream"):
            self._send_whole(made[-1]["response"], says)
            return
        lines = [(each["type"], json.dumps(each, ensure_ascii=False)) for each in made]
        data = [f"event: {name}\ndata: {text}\n\n".encode() for name, text in lines]
        self._send_pieces(data, says)

    def _send_whole(self, answer: Any, says: ScriptedReply) -> None:
        data = json.dumps(answer).encode()
        if says.cut:
            self.send_response(200)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2])
            self._hang_up()
        else:
            self._send(200, data, says.headers)

    def _stream(self, body: Any, says: ScriptedReply) -> None:
        self._send_pieces(self._events(body, says), says)

    def _send_pieces(self, made: list[bytes], says: ScriptedReply) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        for name, value in says.headers.items():
            self.send_header(name, value)
        self.end_headers()
        pieces = says.pieces if says.pieces is not None else made
        for piece in pieces[: len(pieces) // 2] if says.cut else pieces:
            self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            self.wfile.flush()
            self._wait(says.pause)
        if says.cut:
            self._hang_up()
        else:
            self.wfile.write(b"0\r\n\r\n")

    def _events(self, body: Any, says: ScriptedReply) -> list[bytes]:
        head = {
            "id": f"chatcmpl-{len(self.script.asked[body['model']])}",
            "object": "chat.completion.chunk",
            "created": 1_700_000_000,
            "model": body["model"],
        }
        made = [
            {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
            for delta in chunks(says)
        ]
        end: Any = {"index": 0, "delta": {}, "finish_reason": says.finish_reason}
        made.append({**head, "choices": [end]})
        if body.get("stream_options", {}).get("include_usage"):
            made.append({**head, "choices": [], "usage": USAGE})
        data = [f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n".encode() for chunk in made]
        return [*data, b"data: [DONE]\n\n"]

    def _wait(self, seconds: float) -> None:
        """Wait, and notice a client that goes away meanwhile."""
        self.connection.settimeout(0.05)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with suppress(TimeoutError):
                if self.connection.recv(1, socket.MSG_PEEK) == b"":
                    raise ConnectionAbortedError
                time.sleep(0.05)
        self.connection.settimeout(None)

    def _hang_up(self) -> None:
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
    script = ScriptedUpstream()
    handler = type("Handler", (_Handler,), {"script": script})
    server = _Server(("127.0.0.1", 0), handler)
    script.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(POLL,), daemon=True)
    thread.start()
    try:
        yield script
    finally:
        server.shutdown()
        server.server_close()
