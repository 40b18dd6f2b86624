"""A Gemini API on loopback for the real CLI: it plays a script and remembers what it was sent."""

import json
import re
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support import REDIRECT

Body = dict[str, Any]
SEARCH = ("google_web_search", {"query": "why is the sky blue"})
"""A call of the model's."""
POLL = 0.02
"""Seconds after which a server on loopback sees that it is to end; by default half of one."""


@dataclass(frozen=True)
class Request:
    """One call that the CLI made."""

    kind: str
    """main, search or fetch."""
    model: str
    body: Body
    size: int
    key: str | None

    @property
    def tools(self) -> list[str]:
        """The tools that the model was told it has."""
        return [
            declared["name"]
            for tool in self.body.get("tools", [])
            for declared in tool.get("functionDeclarations", [])
        ]

    @property
    def text(self) -> str:
        """All that was said so far."""
        parts = [part for content in self.body["contents"] for part in content["parts"]]
        return "\n".join(part.get("text", "") for part in parts)


@dataclass
class FakeApi:
    """What the model does: first call these tools, one turn each, then say these texts."""

    url: str
    calls: list[tuple[str, Body]] = field(default_factory=list[tuple[str, Body]])
    texts: list[str] = field(default_factory=list[str])
    """One for each conversation; the last one goes on."""
    rounds: list[list[tuple[str, Body]]] = field(default_factory=list[list[tuple[str, Body]]])
    """The calls of each conversation, instead of the same for all."""
    sites: dict[str, str] = field(default_factory=dict[str, str])
    """The one site that is found for a query; for all other queries there are two."""
    memory: str = "From memory."
    """What a search says that finds nothing (`sites` has an empty name for its query)."""
    fetched: str = "A page about blue."
    """What a fetch says."""
    retrieves: bool = True
    """Whether a fetch has really read the pages that it may."""
    queries: list[str] = field(default_factory=list[str])
    """What Google says that it searched."""
    direct: str | None = None
    """What a request with Google Search says to whoever makes it itself."""
    support: tuple[int, ...] = (4,)
    """Bytes of that text at which something supported ends."""
    grounding: Body | None = None
    """The grounding metadata, instead of ours."""
    raw: str | None = None
    """What is answered instead of all that, as it is."""
    failure: tuple[int, Body] | None = None
    """Status and body of every answer, or of those to `failing` alone."""
    failing: str = ""
    """main, search or fetch; all of them if empty."""
    delay: float = 0
    """Seconds before each answer."""
    hangs: bool = False
    hangs_after: int = 0
    """How many requests are answered before one hangs."""
    waiting: int = 0
    """Requests that hang, or are or were held."""
    held: str = ""
    """Words: a request with them waits until it is let go."""
    let_go: threading.Event = field(default_factory=threading.Event)
    drops: bool = False
    finish: str = "STOP"
    preface: str = ""
    """What the model says before its first tool call."""
    last: Body | None = None
    """The candidate that ends each conversation, instead of a text."""
    requests: list[Request] = field(default_factory=list[Request])
    _told: int = 0

    def answer(self, request: Request) -> tuple[int, Body]:
        self.requests.append(request)
        if self.failure and self.failing in ("", request.kind):
            return self.failure
        if request.kind == "search":
            asked = [site for query, site in self.sites.items() if query in request.text]
            if asked == [""]:
                return 200, _candidate([{"text": self.memory}])
            text = self.direct or "Blue, says NASA."
            parts: list[Body] = [{"text": text}]
            if self.direct:
                parts.insert(0, {"text": "I think.", "thought": True})
            found = self.grounding or _grounding(self.support, *asked)
            if self.queries:
                found["webSearchQueries"] = self.queries
            return 200, _candidate(parts, found)
        if request.kind == "fetch":
            return 200, self._fetch(request)
        turn = sum(
            1
            for content in request.body["contents"]
            if any("functionResponse" in part for part in content["parts"])
        )
        calls = self.rounds[self._told] if self.rounds else self.calls
        if turn < len(calls) and request.tools:
            name, arguments = calls[turn]
            call = {"name": name, "args": arguments, "id": f"call-{turn}"}
            said: list[Body] = [{"text": self.preface}] if self.preface and not turn else []
            return 200, _candidate([*said, {"functionCall": call}])
        if self.last:
            return 200, {"candidates": [self.last]}
        text = self.texts[min(self._told, len(self.texts) - 1)]
        self._told += 1
        if self.finish != "STOP":
            return 200, {"candidates": [{"finishReason": self.finish, "index": 0}]}
        return 200, _candidate([{"text": text}])

    def _fetch(self, request: Request) -> Body:
        answer = _candidate([{"text": self.fetched}])
        if self.retrieves:
            answer["candidates"][0]["urlContextMetadata"] = _retrieved(request.text)
        return answer


def _candidate(parts: list[Body], grounding: Body | None = None) -> Body:
    candidate: Body = {"content": {"role": "model", "parts": parts}, "finishReason": "STOP"}
    if grounding:
        candidate["groundingMetadata"] = grounding
    usage = {"promptTokenCount": 100, "candidatesTokenCount": 10, "totalTokenCount": 110}
    return {"candidates": [candidate], "usageMetadata": usage}


def _retrieved(prompt: str) -> Body:
    """All pages that the CLI allows to be read."""
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
    shown = {"renderedContent": "<b>suggested</b>"}
    return {
        "groundingChunks": chunks,
        "groundingSupports": supports,
        "searchEntryPoint": shown,
    }


@contextmanager
def fake_api() -> Generator[FakeApi]:
    """Serve until the context ends."""

    class Handler(BaseHTTPRequestHandler):
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
                over.wait()
            if hangs or api.drops:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                api.requests.append(Request(kind, path[1], body, len(raw), key))
                return
            if api.held and api.held.encode() in raw:
                api.waiting += 1
                api.let_go.wait()
            over.wait(api.delay)
            status, answer = api.answer(Request(kind, path[1], body, len(raw), key))
            data = (api.raw or json.dumps(answer)).encode()
            streamed = path[2].startswith("stream") and status == 200
            if streamed:
                data = b"data: " + data + b"\r\n\r\n"
            self.send_response(status)
            self.send_header(
                "Content-Type", "text/event-stream" if streamed else "application/json"
            )
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def handle_one_request(self) -> None:
            with suppress(OSError):  # the CLI was ended while it waited
                super().handle_one_request()

        def log_request(self, code: object = "-", size: object = "-") -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        request_queue_size = 256  # beyond it a connection waits a second

    over = threading.Event()
    server = Server(("127.0.0.1", 0), Handler)
    api = FakeApi(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(POLL,))
    thread.start()
    try:
        yield api
    finally:
        over.set()
        api.let_go.set()
        server.shutdown()
        server.server_close()
        thread.join()
