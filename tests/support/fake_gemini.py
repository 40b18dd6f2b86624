#!/usr/bin/env python3
"""A gemini CLI without Node for tests of ACP processes: single runs and ACP, on the fake API.

For a prompt with one search it behaves like 0.61: same requests, events, session record, telemetry
and errors. `install` lays it out like the official package, so that the program accepts it as such.
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

Emit = Callable[..., None]
"""Accepts an event kind (`text`, `call_started` or `call_finished`) and its details."""


def install(folder: Path) -> Path:
    """Install this program in `folder` as the official npm package; return its path."""
    package = folder / "npm/@google/gemini-cli"
    program = package / "bundle/gemini.js"
    program.parent.mkdir(parents=True)
    (package / "package.json").write_text('{"version": "0.61.0"}')
    # Not `env python3`: that may be a shell script, which starts more processes.
    source = Path(__file__).read_text().partition("\n")[2]
    program.write_text(f"#!{sys.executable}\n{source}")
    program.chmod(0o755)
    return program


class ApiError(Exception):
    """The API returned an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Cancelled(Exception):
    """The client cancelled the prompt."""


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
    index = sys.argv.index("--model") + 1 if "--model" in sys.argv else 0
    return sys.argv[index] if index else "gemini-3.8-flash"


def generate(body: dict[str, Any]) -> dict[str, Any]:
    """Send one request and return its first candidate."""
    base = os.environ["GOOGLE_GEMINI_BASE_URL"]
    request = urllib.request.Request(
        f"{base}/v1beta/models/{model()}:generateContent",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "x-goog-api-key": api_key()},
    )
    try:
        with urllib.request.urlopen(request) as response:
            return json.load(response)["candidates"][0]
    except urllib.error.HTTPError as error:
        raise ApiError(error.code, error.read().decode()) from None


def log_event(session: str, name: str, **attributes: Any) -> None:
    """Write a telemetry event."""
    path = os.environ.get("GEMINI_TELEMETRY_OUTFILE")
    if path and os.environ.get("GEMINI_TELEMETRY_ENABLED") == "true":
        event = {"event.name": f"gemini_cli.{name}", "session.id": session, "model": model()}
        event["event.timestamp"] = datetime.now(UTC).isoformat()
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"attributes": {**event, **attributes}}, indent=2) + "\n")


def search(session: str, query: str) -> tuple[str, str]:
    """Run the search tool; return the status of the call and its output."""
    contents = [{"role": "user", "parts": [{"text": query}]}]
    call = {"function_name": SEARCH, "function_args": json.dumps({"query": query})}
    log_event(session, "api_request", role="utility_tool", request_text=json.dumps(contents))
    try:
        candidate = generate({"contents": contents, "tools": [{"googleSearch": {}}]})
    except ApiError as error:
        log_event(session, "tool_call", **call, success=False, error=str(error))
        return "error", f"Error: {error}"
    response = json.dumps({"candidates": [candidate]})
    log_event(session, "api_response", role="utility_tool", response_text=response, **TOKENS)
    log_event(session, "tool_call", **call, success=True)
    chunks = candidate.get("groundingMetadata", {}).get("groundingChunks", [])
    sources = [
        f"[{number}] {chunk['web']['title']} ({chunk['web']['uri']})"
        for number, chunk in enumerate(chunks, 1)
    ]
    text = candidate["content"]["parts"][0]["text"]
    source_list = "\n".join(["", "", "Sources:", *sources])
    return "success", f'Web search results for "{query}":\n\n{text}{source_list}'


def run_prompt(prompt: str, session: str, emit: Emit, is_cancelled: Callable[[], bool]) -> int:
    """Run a prompt to completion; return the number of tool calls."""
    contents: list[Any] = [{"role": "user", "parts": [{"text": prompt}]}]
    tools = [{"functionDeclarations": [{"name": SEARCH}, {"name": "web_fetch"}]}]
    calls: list[Any] = []
    text = ""
    for _ in range(MAX_TURNS):
        candidate = generate({"contents": contents, "tools": tools})
        log_event(session, "api_response", role="main", **TOKENS)
        if is_cancelled():
            raise Cancelled
        parts = candidate.get("content", {}).get("parts", [])
        text = "".join(part.get("text", "") for part in parts)
        if text:
            emit("text", text)
        call = next((part["functionCall"] for part in parts if "functionCall" in part), None)
        if not call:
            break
        emit("call_started", call["id"], call["args"]["query"])
        status, output = search(session, call["args"]["query"])
        emit("call_finished", call["id"], status, output)
        function_response = {"functionResponse": {"name": SEARCH, "response": {"output": output}}}
        calls.append({**call, "status": status, "result": [function_response]})
        contents += [candidate["content"], {"role": "user", "parts": [function_response]}]
    write_record(session, prompt, calls, text)
    return len(calls)


def write_record(session: str, prompt: str, calls: list[Any], text: str) -> None:
    folder = Path(os.environ["GEMINI_CLI_HOME"], ".gemini/tmp/work/chats")
    folder.mkdir(parents=True, exist_ok=True)
    message = {"type": "gemini", "model": model()}
    lines = [
        {"type": "user", "id": "0", "content": prompt},
        {**message, "id": "1", "content": "", "toolCalls": calls},
        {**message, "id": "2", "content": text},
    ]
    record = folder / f"session-2026-{session[:8]}.jsonl"
    record.write_text("".join(json.dumps(line) + "\n" for line in lines))


_stdout_lock = threading.Lock()


def send(**message: Any) -> None:
    with _stdout_lock:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def run_once() -> int:
    prompt = sys.stdin.read()
    if not api_key():
        sys.stderr.write("Please set an Auth method in your settings.json or GEMINI_API_KEY")
        return 41
    session = str(uuid.uuid4())
    send(type="init", session_id=session, model=model())

    def emit(kind: str, *details: str) -> None:
        if kind == "text":
            send(type="message", role="assistant", content=details[0], delta=True)
        elif kind == "call_started":
            query = {"query": details[1]}
            send(type="tool_use", tool_name=SEARCH, tool_id=details[0], parameters=query)
        else:
            error = {"message": details[2]}
            send(type="tool_result", tool_id=details[0], status=details[1], error=error)

    try:
        calls = run_prompt(prompt, session, emit, lambda: False)
    except ApiError as error:
        failure = {"type": "unknown", "message": f"[API Error: {error}]"}
        send(type="result", status="error", error=failure)
        return error.status % 256
    except OSError:
        failure = "[API Error: exception TypeError: fetch failed sending request]"
        send(type="result", status="error", error={"type": "unknown", "message": failure})
        return 1
    send(type="result", status="success", stats={"tool_calls": calls, "models": {model(): {}}})
    return 0


class AcpAgent:
    """The part of the Agent Client Protocol that the program uses."""

    def __init__(self) -> None:
        self._cancelled: set[str] = set()
        self._prompts: dict[str, int] = {}

    def serve(self) -> int:
        for line in sys.stdin:
            message = json.loads(line)
            params = message.get("params", {})
            match message.get("method"):
                case "initialize":
                    self._respond(message["id"], {"protocolVersion": 1})
                case "session/new" if not api_key():
                    self._respond_error(message["id"], -32000, "Authentication required")
                case "session/new":
                    self._respond(message["id"], {"sessionId": str(uuid.uuid4())})
                case "session/prompt":
                    session = params["sessionId"]
                    self._prompts[session] = message["id"]
                    text = params["prompt"][0]["text"]
                    threading.Thread(
                        target=self._run_session, args=(session, text), daemon=True
                    ).start()
                case "session/cancel":
                    session = params["sessionId"]
                    self._cancelled.add(session)
                    self._respond(self._prompts[session], {"stopReason": "cancelled"})
                case _:
                    pass
        return 0

    def _run_session(self, session: str, prompt: str) -> None:
        request_id = self._prompts[session]

        def emit(kind: str, *details: str) -> None:
            self._send_update(session, _session_update(kind, *details))

        try:
            run_prompt(prompt, session, emit, lambda: session in self._cancelled)
        except ApiError as error:
            self._respond_error(request_id, error.status, str(error))
        except Cancelled:
            pass  # session/cancel has been answered already
        except OSError as error:
            self._respond_error(request_id, 500, str(error))
        else:
            self._respond(request_id, {"stopReason": "end_turn"})

    def _send_update(self, session: str, update: dict[str, Any]) -> None:
        params = {"sessionId": session, "update": update}
        send(jsonrpc="2.0", method="session/update", params=params)

    def _respond(self, request_id: int, result: object) -> None:
        send(jsonrpc="2.0", id=request_id, result=result)

    def _respond_error(self, request_id: int, code: int, message: str) -> None:
        send(jsonrpc="2.0", id=request_id, error={"code": code, "message": message})


def _session_update(kind: str, *details: str) -> dict[str, Any]:
    if kind == "text":
        content = {"type": "text", "text": details[0]}
        return {"sessionUpdate": "agent_message_chunk", "content": content}
    call = {"toolCallId": details[0], "kind": "search"}
    if kind == "call_started":
        title = f'Searching the web for: "{details[1]}"'
        return {"sessionUpdate": "tool_call", "title": title, "status": "in_progress", **call}
    status = "completed" if details[1] == "success" else "failed"
    content = [{"type": "content", "content": {"type": "text", "text": details[2]}}]
    return {"sessionUpdate": "tool_call_update", "status": status, "content": content, **call}


if __name__ == "__main__":
    sys.exit(AcpAgent().serve() if "--acp" in sys.argv else run_once())
