"""A Gemini API on loopback for the real CLI: it plays a script and records its requests."""

import json
import re
import socket
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support import REDIRECT

Body = dict[str, Any]
SEARCH = ("google_web_search", {"query": "why is the sky blue"})
"""A tool call that the model makes."""
POLL_INTERVAL = 0.02
"""Seconds between shutdown checks of a loopback server; the default is 0.5."""


@dataclass(frozen=True)
class Request:
    """A request from the CLI."""

    kind: str
    """main, search or fetch."""
    model: str
    body: Body
    size: int
    key: str | None

    @property
    def tools(self) -> list[str]:
        """Names of the tools that were declared to the model."""
        return [
            declaration["name"]
            for tool in self.body.get("tools", [])
            for declaration in tool.get("functionDeclarations", [])
        ]

    @property
    def text(self) -> str:
        """All text of the conversation so far."""
        parts = [part for content in self.body["contents"] for part in content["parts"]]
        return "\n".join(part.get("text", "") for part in parts)


@dataclass
class FakeApi:
    """A scripted model: it makes its tool calls, turn by turn, then answers with its texts."""

    url: str
    calls: list[tuple[str, Body]] = field(default_factory=list[tuple[str, Body]])
    calls_per_turn: int = 1
    texts: list[str] = field(default_factory=list[str])
    """One per conversation; the last one is repeated."""
    rounds: list[list[tuple[str, Body]]] = field(default_factory=list[list[tuple[str, Body]]])
    """The calls of each conversation, instead of the same `calls` for all."""
    sites: dict[str, str] = field(default_factory=dict[str, str])
    """The only site found for a query; any other query finds two."""
    ungrounded_text: str = "From memory."
    """The text of a search without hits (its query has an empty name in `sites`)."""
    fetch_text: str = "A page about blue."
    """The text of a fetch."""
    retrieves: bool = True
    """Whether a fetch reports the allowed pages as retrieved."""
    queries: list[str] = field(default_factory=list[str])
    """The search queries in the grounding metadata."""
    direct_text: str | None = None
    """The text of a direct API request with Google Search."""
    support: tuple[int, ...] = (4,)
    """Byte offsets in that text where supported segments end."""
    grounding: Body | None = None
    """Grounding metadata that replaces the default."""
    raw: str | None = None
    """A raw response body that replaces everything else."""
    failure: tuple[int, Body] | None = None
    """Status and body of every response, or only of responses to `failing` requests."""
    failing_kind: str = ""
    """main, search or fetch; if empty, all of them."""
    model_lists: int = 0
    """How often the list of models was requested."""
    models_status: int = 200
    """Status of the list of models, if there is no `failure`."""
    clock_error: float = 0
    """Seconds by which the API's clock is ahead."""
    delay: float = 0
    """Seconds before each response."""
    search_delay: float | None = None
    """Same for searches, if it differs."""
    hangs: bool = False
    hangs_after: int = 0
    """The number of requests that are answered before one hangs."""
    waiting: int = 0
    """The number of requests that hang, are held or have been held."""
    hold_text: str = ""
    """A text: a request that contains it waits for `release`."""
    hold_kind: str = ""
    """main, search or fetch: such a request waits for `release`."""
    release: threading.Event = field(default_factory=threading.Event)
    drops_connection: bool = False
    finish: str = "STOP"
    preface: str = ""
    """The text that the model writes before its first tool call."""
    final_candidate: Body | None = None
    """The final candidate of each conversation, instead of a text."""
    requests: list[Request] = field(default_factory=list[Request])
    _finished_conversations: int = 0

    def answer(self, request: Request) -> tuple[int, Body]:
        self.requests.append(request)
        if self.failure and self.failing_kind in ("", request.kind):
            return self.failure
        if request.kind == "search":
            sites = [site for query, site in self.sites.items() if query in request.text]
            if sites == [""]:
                return 200, _candidate([{"text": self.ungrounded_text}])
            text = self.direct_text or "Blue, says NASA."
            parts: list[Body] = [{"text": text}]
            if self.direct_text:
                parts.insert(0, {"text": "I think.", "thought": True})
            grounding = self.grounding or _grounding(self.support, *sites)
            if self.queries:
                grounding["webSearchQueries"] = self.queries
            return 200, _candidate(parts, grounding)
        if request.kind == "fetch":
            return 200, self._fetch_response(request)
        turn = sum(
            1
            for content in request.body["contents"]
            if any("functionResponse" in part for part in content["parts"])
        )
        calls = self.rounds[self._finished_conversations] if self.rounds else self.calls
        calls_made = turn * self.calls_per_turn
        if calls_made < len(calls) and request.tools:
            parts = [
                {"functionCall": {"name": name, "args": arguments, "id": f"call-{number}"}}
                for number, (name, arguments) in enumerate(calls)
                if calls_made <= number < calls_made + self.calls_per_turn
            ]
            preface: list[Body] = [{"text": self.preface}] if self.preface and not turn else []
            return 200, _candidate([*preface, *parts])
        if self.final_candidate:
            return 200, {"candidates": [self.final_candidate]}
        text = self.texts[min(self._finished_conversations, len(self.texts) - 1)]
        self._finished_conversations += 1
        if self.finish != "STOP":
            return 200, {"candidates": [{"finishReason": self.finish, "index": 0}]}
        return 200, _candidate([{"text": text}])

    def _fetch_response(self, request: Request) -> Body:
        response = _candidate([{"text": self.fetch_text}])
        if self.retrieves:
            response["candidates"][0]["urlContextMetadata"] = _url_metadata(request.text)
        return response


def _candidate(parts: list[Body], grounding: Body | None = None) -> Body:
    candidate: Body = {"content": {"role": "model", "parts": parts}, "finishReason": "STOP"}
    if grounding:
        candidate["groundingMetadata"] = grounding
    usage = {"promptTokenCount": 100, "candidatesTokenCount": 10, "totalTokenCount": 110}
    return {"candidates": [candidate], "usageMetadata": usage}


def _url_metadata(prompt: str) -> Body:
    """Report every page that the CLI authorized as retrieved."""
    allowed = prompt.partition("<authorized_urls>\n")[2].partition("\n</authorized_urls>")[0]
    status = "URL_RETRIEVAL_STATUS_SUCCESS"
    pages = [{"retrievedUrl": url, "urlRetrievalStatus": status} for url in allowed.split("\n")]
    return {"urlMetadata": pages}


def _grounding(ends: tuple[int, ...], *sites: str) -> Body:
    chunks = [
        {"web": {"uri": REDIRECT + site, "title": f"{site}.gov"}}
        for site in sites or ("nasa", "noaa")
    ]
    supports = [
        {
            "segment": {"startIndex": 0, "endIndex": end},
            "groundingChunkIndices": list(range(len(chunks))),
        }
        for end in ends
    ]
    entry_point = {"renderedContent": "<b>suggested</b>"}
    return {
        "groundingChunks": chunks,
        "groundingSupports": supports,
        "searchEntryPoint": entry_point,
    }


@contextmanager
def fake_api() -> Generator[FakeApi]:
    """Serve the API until the context exits."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """List the models."""
            api.model_lists += 1
            stopping.wait(api.delay)
            status, body = api.failure or (api.models_status, {"models": []})
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def date_time_string(self, timestamp: float | None = None) -> str:
            return super().date_time_string((timestamp or time.time()) + api.clock_error)

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["Content-Length"]))
            body: Body = json.loads(raw)
            path = re.search(r"/models/([^:]+):(\w+)", self.path)
            assert path
            tools = json.dumps(body.get("tools", []))
            kind = (
                "search"
                if "googleSearch" in tools
                else "fetch"
                if "urlContext" in tools
                else "main"
            )
            key = self.headers["x-goog-api-key"]
            hangs = api.hangs and len(api.requests) >= api.hangs_after
            if hangs:
                api.waiting += 1
                stopping.wait()
            if hangs or api.drops_connection:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                api.requests.append(Request(kind, path[1], body, len(raw), key))
                return
            if kind == api.hold_kind or (api.hold_text and api.hold_text.encode() in raw):
                api.waiting += 1
                api.release.wait()
            is_slow_search = kind == "search" and api.search_delay is not None
            stopping.wait(api.search_delay if is_slow_search else api.delay)
            status, response = api.answer(Request(kind, path[1], body, len(raw), key))
            data = (api.raw or json.dumps(response)).encode()
            is_stream = path[2].startswith("stream") and status == 200
            if is_stream:
                data = b"data: " + data + b"\r\n\r\n"
            self.send_response(status)
            self.send_header(
                "Content-Type", "text/event-stream" if is_stream else "application/json"
            )
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def handle_one_request(self) -> None:
            with suppress(OSError):  # the CLI was stopped while it waited
                super().handle_one_request()

        def log_request(self, code: object = "-", size: object = "-") -> None:
            """Log nothing."""

    class Server(ThreadingHTTPServer):
        request_queue_size = 256  # with a full backlog, a connection waits a second

    stopping = threading.Event()
    server = Server(("127.0.0.1", 0), Handler)
    api = FakeApi(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(POLL_INTERVAL,))
    thread.start()
    try:
        yield api
    finally:
        stopping.set()
        api.release.set()
        server.shutdown()
        server.server_close()
        thread.join()
