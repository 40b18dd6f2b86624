#!/usr/bin/env python3
"""A gemini CLI without Node for tests of warm processes: single runs and ACP, on the fake API.

It does with one search what 0.61 does: the same requests, events, session record,
telemetry and errors. It
is installed like the official one, so the program takes it for that (`install`).
"""

import json
import os
import sys
import threading
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

SEARCH = "google_web_search"
MAX_TURNS = 50
TOKENS = {"input_token_count": 100, "output_token_count": 10, "total_token_count": 110}

Tell = Callable[..., None]
"""Takes `text`, `begin` or `end`, and what belongs to it."""


def install(folder: Path) -> Path:
    """The path of this program, as an npm package of the official name in `folder`."""
    package = folder / "npm/@google/gemini-cli"
    program = package / "bundle/gemini.js"
    program.parent.mkdir(parents=True)
    (package / "package.json").write_text('{"version": "0.61.0"}')
    program.write_text(Path(__file__).read_text())
    program.chmod(0o755)
    return program


class ApiError(Exception):
    """What the API refused."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Cancelled(Exception):
    """Nobody wants the answer any more."""


def api_key() -> str:
    if key := os.environ.get("GEMINI_API_KEY"):
        return key
    for folder in (Path.cwd(), *Path.cwd().parents):
        env_file = folder / ".gemini/.env"
        if env_file.is_file():
            lines = [line.partition("=") for line in env_file.read_text().splitlines()]
            return next((value for name, _, value in lines if name == "GEMINI_API_KEY"), "")
    return ""


def model() -> str:
    known = sys.argv.index("--model") + 1 if "--model" in sys.argv else 0
    return sys.argv[known] if known else "gemini-3.8-flash"


def ask(body: dict[str, Any]) -> dict[str, Any]:
    """The candidate of one request."""
    base = os.environ["GOOGLE_GEMINI_BASE_URL"]
    request = urllib.request.Request(
        f"{base}/v1beta/models/{model()}:generateContent",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "x-goog-api-key": api_key()},
    )
    try:
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)["candidates"][0]
    except urllib.error.HTTPError as error:
        raise ApiError(error.code, error.read().decode()) from None


def log(session: str, name: str, **attributes: Any) -> None:
    """One event of the telemetry."""
    path = os.environ.get("GEMINI_TELEMETRY_OUTFILE")
    if path and os.environ.get("GEMINI_TELEMETRY_ENABLED") == "true":
        event = {"event.name": f"gemini_cli.{name}", "session.id": session, "model": model()}
        event["event.timestamp"] = datetime.now(UTC).isoformat()
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"attributes": {**event, **attributes}}, indent=2) + "\n")


def search(session: str, query: str) -> tuple[str, str]:
    """How the tool's call ended, and what it returned."""
    contents = [{"role": "user", "parts": [{"text": query}]}]
    call = {"function_name": SEARCH, "function_args": json.dumps({"query": query})}
    log(session, "api_request", role="utility_tool", request_text=json.dumps(contents))
    try:
        found = ask({"contents": contents, "tools": [{"googleSearch": {}}]})
    except ApiError as error:
        log(session, "tool_call", **call, success=False, error=str(error))
        return "error", f"Error: {error}"
    answer = json.dumps({"candidates": [found]})
    log(session, "api_response", role="utility_tool", response_text=answer, **TOKENS)
    log(session, "tool_call", **call, success=True)
    chunks = found.get("groundingMetadata", {}).get("groundingChunks", [])
    sources = [
        f"[{number}] {chunk['web']['title']} ({chunk['web']['uri']})"
        for number, chunk in enumerate(chunks, 1)
    ]
    text = found["content"]["parts"][0]["text"]
    listed = "\n".join(["", "", "Sources:", *sources])
    return "success", f'Web search results for "{query}":\n\n{text}{listed}'


def turn(prompt: str, session: str, tell: Tell, cancelled: Callable[[], bool]) -> int:
    """One prompt to its end; the number of tool calls."""
    contents: list[Any] = [{"role": "user", "parts": [{"text": prompt}]}]
    tools = [{"functionDeclarations": [{"name": SEARCH}, {"name": "web_fetch"}]}]
    calls: list[Any] = []
    text = ""
    for _ in range(MAX_TURNS):
        candidate = ask({"contents": contents, "tools": tools})
        log(session, "api_response", role="main", **TOKENS)
        if cancelled():
            raise Cancelled
        parts = candidate.get("content", {}).get("parts", [])
        text = "".join(part.get("text", "") for part in parts)
        if text:
            tell("text", text)
        call = next((part["functionCall"] for part in parts if "functionCall" in part), None)
        if not call:
            break
        tell("begin", call["id"], call["args"]["query"])
        status, output = search(session, call["args"]["query"])
        tell("end", call["id"], status, output)
        answered = {"functionResponse": {"name": SEARCH, "response": {"output": output}}}
        calls.append({**call, "status": status, "result": [answered]})
        contents += [candidate["content"], {"role": "user", "parts": [answered]}]
    write_record(session, prompt, calls, text)
    return len(calls)


def write_record(session: str, prompt: str, calls: list[Any], text: str) -> None:
    folder = Path(os.environ["GEMINI_CLI_HOME"], ".gemini/tmp/work/chats")
    folder.mkdir(parents=True, exist_ok=True)
    said = {"type": "gemini", "model": model()}
    lines = [
        {"type": "user", "id": "0", "content": prompt},
        {**said, "id": "1", "content": "", "toolCalls": calls},
        {**said, "id": "2", "content": text},
    ]
    record = folder / f"session-2026-{session[:8]}.jsonl"
    record.write_text("".join(json.dumps(line) + "\n" for line in lines))


_writing = threading.Lock()


def send(**message: Any) -> None:
    with _writing:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def run_once() -> int:
    prompt = sys.stdin.read()
    if not api_key():
        sys.stderr.write("Please set an Auth method in your settings.json or GEMINI_API_KEY")
        return 41
    session = str(uuid.uuid4())
    send(type="init", session_id=session, model=model())

    def tell(kind: str, *about: str) -> None:
        if kind == "text":
            send(type="message", role="assistant", content=about[0], delta=True)
        elif kind == "begin":
            query = {"query": about[1]}
            send(type="tool_use", tool_name=SEARCH, tool_id=about[0], parameters=query)
        else:
            error = {"message": about[2]}
            send(type="tool_result", tool_id=about[0], status=about[1], error=error)

    try:
        calls = turn(prompt, session, tell, lambda: False)
    except ApiError as error:
        told = {"type": "unknown", "message": f"[API Error: {error}]"}
        send(type="result", status="error", error=told)
        return error.status % 256
    send(type="result", status="success", stats={"tool_calls": calls, "models": {model(): {}}})
    return 0


class AcpAgent:
    """The Agent Client Protocol, as far as our program speaks it."""

    def __init__(self) -> None:
        self._cancelled: set[str] = set()
        self._prompts: dict[str, int] = {}

    def serve(self) -> int:
        for line in sys.stdin:
            message = json.loads(line)
            params = message.get("params", {})
            match message.get("method"):
                case "initialize":
                    self._answer(message["id"], {"protocolVersion": 1})
                case "session/new" if not api_key():
                    self._refuse(message["id"], -32000, "Authentication required")
                case "session/new":
                    self._answer(message["id"], {"sessionId": str(uuid.uuid4())})
                case "session/prompt":
                    session = params["sessionId"]
                    self._prompts[session] = message["id"]
                    text = params["prompt"][0]["text"]
                    threading.Thread(target=self._run, args=(session, text), daemon=True).start()
                case "session/cancel":
                    session = params["sessionId"]
                    self._cancelled.add(session)
                    self._answer(self._prompts[session], {"stopReason": "cancelled"})
                case _:
                    pass
        return 0

    def _run(self, session: str, prompt: str) -> None:
        number = self._prompts[session]

        def tell(kind: str, *about: str) -> None:
            self._update(session, _update(kind, *about))

        try:
            turn(prompt, session, tell, lambda: session in self._cancelled)
        except ApiError as error:
            self._refuse(number, error.status, str(error))
        except Cancelled:
            pass  # that was answered
        except OSError as error:
            self._refuse(number, 500, str(error))
        else:
            self._answer(number, {"stopReason": "end_turn"})

    def _update(self, session: str, update: dict[str, Any]) -> None:
        params = {"sessionId": session, "update": update}
        send(jsonrpc="2.0", method="session/update", params=params)

    def _answer(self, number: int, result: object) -> None:
        send(jsonrpc="2.0", id=number, result=result)

    def _refuse(self, number: int, code: int, message: str) -> None:
        send(jsonrpc="2.0", id=number, error={"code": code, "message": message})


def _update(kind: str, *about: str) -> dict[str, Any]:
    if kind == "text":
        content = {"type": "text", "text": about[0]}
        return {"sessionUpdate": "agent_message_chunk", "content": content}
    call = {"toolCallId": about[0], "kind": "search"}
    if kind == "begin":
        title = f'Searching the web for: "{about[1]}"'
        return {"sessionUpdate": "tool_call", "title": title, "status": "in_progress", **call}
    status = "completed" if about[1] == "success" else "failed"
    content = [{"type": "content", "content": {"type": "text", "text": about[2]}}]
    return {"sessionUpdate": "tool_call_update", "status": status, "content": content, **call}


if __name__ == "__main__":
    sys.exit(AcpAgent().serve() if "--acp" in sys.argv else run_once())
