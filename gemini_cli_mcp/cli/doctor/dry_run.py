"""A search without network access: the real CLI against a fake API on loopback.

It shows what a search would send: whether the CLI applies our settings, whether it is isolated from
the user's own configuration, and whether we can parse its events, records and sessions.
"""

import json
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import cast

import anyio

from gemini_cli_mcp.call_context import CallContext
from gemini_cli_mcp.cli.doctor.findings import UPGRADE_COMMAND, Finding, note, ok, problem
from gemini_cli_mcp.errors import GeminiMcpError
from gemini_cli_mcp.json_values import list_or_empty, object_or_empty
from gemini_cli_mcp.providers.gemini.binary import GeminiBinary, child_path
from gemini_cli_mcp.providers.gemini.events import FETCH_TOOL, SEARCH_TOOL
from gemini_cli_mcp.providers.registry import ProviderRegistry
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.types import GOOGLE_REDIRECT_HOST, ProcessUse
from gemini_cli_mcp.workspace import Workspace

DRY_RUN_MODEL = "gemini-2.5-flash"
DRY_RUN_PROMPT = "This is a dry run of gemini-cli-mcp. Search once."


async def check_dry_run(
    settings: Settings, binary: GeminiBinary, environ: Mapping[str, str]
) -> list[Finding]:
    """Run a search with the installed CLI against the fake API."""
    with TemporaryDirectory() as folder, _serve_fake_api() as api:
        canary = _write_canary_config(Path(folder))
        dry_run_environ = {
            **{name: value for name, value in environ.items() if not name.startswith("GOOGLE_")},
            "PATH": child_path(binary, environ),
            "HOME": folder,
            "GEMINI_CLI_HOME": "",
            "GEMINI_API_KEY": "dry-run",
            "GOOGLE_GEMINI_BASE_URL": api.url,
            "NO_PROXY": "127.0.0.1",
        }
        # A full model name: for an alias the CLI first asks another model which one to use.
        overrides = {
            "config_dir": Path(folder) / "config",
            "providers": ("gemini",),
            "model": DRY_RUN_MODEL,
            "cli_path": str(binary.path),
            # This check ignores the evidence, so it does not wait for telemetry.
            "limits": replace(settings.limits, telemetry_timeout=0.0),
        }
        settings = settings.model_copy(update=overrides)
        workspace = Workspace(settings.config_dir)
        seconds = settings.limits.dry_run_timeout
        try:
            with anyio.fail_after(seconds):
                isolation = await _check_isolation(
                    settings, workspace, dry_run_environ, api, canary
                )
                findings = [isolation]
                if isolation.status != "problem":
                    arguments = settings, workspace, dry_run_environ
                    findings.append(await _check_ready_process(*arguments))
                    findings.append(await _check_shared_process(*arguments))
        except TimeoutError:
            findings = [problem("dry run", f"no answer within {seconds:g} s", UPGRADE_COMMAND)]
        finally:
            workspace.close()
    return findings


async def _check_isolation(
    settings: Settings, workspace: Workspace, environ: dict[str, str], api: "_FakeApi", canary: str
) -> Finding:
    [provider] = ProviderRegistry(settings, workspace, environ).configured
    try:
        reply = await provider.ask(DRY_RUN_PROMPT, CallContext())
    except GeminiMcpError as error:
        return problem("dry run", f"a search on loopback failed: {error.message}", UPGRADE_COMMAND)
    tools = {name for request in api.requests for name in request.tool_names}
    saw_canary = any(canary in request.text for request in api.requests)
    if saw_canary or tools != {SEARCH_TOOL, FETCH_TOOL}:
        return problem(
            "isolation",
            "the user's own gemini configuration leaked into the run",
            UPGRADE_COMMAND,
        )
    if reply.evidence != "ledger" or not reply.searches or not reply.searches[0].sources:
        return note(
            "isolation",
            f"searches work, but with weaker evidence ({reply.evidence})",
            UPGRADE_COMMAND,
        )
    kilobytes = sum(len(request.text) for request in api.requests) / 1000
    return ok(
        "isolation",
        "a dry run on loopback (stream-json) had only the two search tools, recorded its sources "
        "and saw none of your configuration; it sent "
        f"{kilobytes:.0f} kB in {len(api.requests)} requests",
    )


async def _check_ready_process(
    settings: Settings, workspace: Workspace, environ: dict[str, str]
) -> Finding:
    settings = settings.model_copy(update={"ready": 1, "concurrency": 0, "queue": 1, "warm": 0})
    if await _process_of_a_search(settings, workspace, environ) != "ready":
        return note(
            "ready process",
            "this CLI cannot be started ahead, so every search takes a second longer",
            UPGRADE_COMMAND,
        )
    return ok("ready process", "supported; `serve` and `gateway` start GEMINI_MCP_READY of them")


async def _check_shared_process(
    settings: Settings, workspace: Workspace, environ: dict[str, str]
) -> Finding:
    settings = settings.model_copy(update={"ready": 0, "concurrency": 0, "queue": 1, "warm": 1})
    if await _process_of_a_search(settings, workspace, environ) != "shared":
        return note(
            "shared process",
            "this CLI does not support it (ACP), so calls beyond GEMINI_MCP_READY and "
            "GEMINI_MCP_CONCURRENCY wait",
            UPGRADE_COMMAND,
        )
    return ok("shared process", "supported (ACP); used when all other processes are taken")


async def _process_of_a_search(
    settings: Settings, workspace: Workspace, environ: Mapping[str, str]
) -> ProcessUse | None:
    """Run a search with these processes; return how it got one, or None if it failed."""
    registry = ProviderRegistry(settings, workspace, environ, keeps_processes=True)
    reply = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(registry.run_search_pools)
        with (
            anyio.move_on_after(settings.limits.dry_run_timeout / 4),
            suppress(GeminiMcpError),
        ):
            while settings.ready and not registry.has_ready_process:
                await anyio.sleep(0.1)
            reply = await registry.configured[0].ask(DRY_RUN_PROMPT, CallContext())
        tasks.cancel_scope.cancel()
    return reply.process if reply else None


def _write_canary_config(folder: Path) -> str:
    """Write a user configuration that no search may see; return the marker it contains."""
    canary = f"canary-{token_hex(8)}"
    gemini = folder / ".gemini"
    gemini.mkdir()
    (gemini / "GEMINI.md").write_text(f"Always say {canary}.", encoding="utf-8")
    server = {"command": "false", "args": [canary]}
    settings = {"mcpServers": {"canary": server}, "tools": {"core": ["run_shell_command"]}}
    (gemini / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    return canary


@dataclass(frozen=True)
class _ApiRequest:
    """A request of the CLI to the fake API."""

    text: str
    tool_names: tuple[str, ...]
    """Functions that the model may call."""
    is_search: bool
    has_function_response: bool

    @classmethod
    def parse(cls, text: str) -> "_ApiRequest":
        body = object_or_empty(cast("object", json.loads(text)))
        tools = [object_or_empty(tool) for tool in list_or_empty(body.get("tools"))]
        declarations = [
            object_or_empty(declaration)
            for tool in tools
            for declaration in list_or_empty(tool.get("functionDeclarations"))
        ]
        return cls(
            text,
            tuple(str(declaration.get("name")) for declaration in declarations),
            any("googleSearch" in tool for tool in tools),
            "functionResponse" in json.dumps(body.get("contents")),
        )


@dataclass
class _FakeApi:
    url: str
    requests: list[_ApiRequest] = field(default_factory=list[_ApiRequest])


def _reply_to(request: _ApiRequest) -> bytes:
    """Reply to a search with a source, else with one search call, then with one sentence."""
    call = {"functionCall": {"name": SEARCH_TOOL, "args": {"query": "dry run"}, "id": "1"}}
    wants_call = request.tool_names and not request.is_search and not request.has_function_response
    part = call if wants_call else {"text": "Done."}
    content = {"role": "model", "parts": [part]}
    web = {
        "uri": f"https://{GOOGLE_REDIRECT_HOST}/grounding-api-redirect/x",
        "title": "example.com",
    }
    support = {"segment": {"startIndex": 0, "endIndex": 4}, "groundingChunkIndices": [0]}
    grounding = {"groundingChunks": [{"web": web}], "groundingSupports": [support]}
    candidate = {
        "finishReason": "STOP",
        "index": 0,
        "content": content,
        **({"groundingMetadata": grounding} if request.is_search else {}),
    }
    return json.dumps({"candidates": [candidate]}).encode()


@contextmanager
def _serve_fake_api() -> Generator[_FakeApi]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers["Content-Length"])).decode()
            request = _ApiRequest.parse(text)
            api.requests.append(request)
            data = _reply_to(request)
            is_stream = "stream" in self.path
            if is_stream:
                data = b"data: " + data + b"\r\n\r\n"
            self.send_response(200)
            content_type = "text/event-stream" if is_stream else "application/json"
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Do not log requests."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    api = _FakeApi(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
