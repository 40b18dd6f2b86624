"""Call every tool once through an MCP client. Exits 1 if a call fails."""

import os
import sys
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

QUERY = {"query": "What is the Model Context Protocol?"}
CALLS = {
    "search": QUERY,
    "grounded_search": QUERY,
    "web_search": QUERY,
    "deep_search": {**QUERY, "wait_seconds": 0},
    "deep_search_result": {},
    "deep_search_cancel": {},
}
"""Arguments by tool, in call order; the last two tools get the job id of the call before them."""


STUB = (
    Path(sysconfig.get_path("scripts"), "gemini-cli-mcp-stub.exe")
    if sys.platform == "win32"
    else Path(__file__).with_name("stub-gemini")
)


async def main() -> int:
    with TemporaryDirectory() as config_dir:
        server = StdioServerParameters(
            command=sys.executable,
            args=["-m", "gemini_cli_mcp"],
            env={
                **os.environ,
                "GEMINI_MCP_CLI_PATH": str(STUB),
                "GEMINI_MCP_CONFIG_DIR": config_dir,
                "STUB_GEMINI_SCENARIO": "deep",
            },
        )
        failures = 0
        async with Client(stdio_client(server)) as client:
            tool_names = {tool.name for tool in (await client.list_tools()).tools}
            job_arguments: dict[str, object] = {}
            for name in [*CALLS, *sorted(tool_names - CALLS.keys())]:
                result = await client.call_tool(name, CALLS.get(name) or job_arguments)
                content: dict[str, object] = result.structured_content or {}
                job_arguments = {"job_id": content.get("job_id")}
                failures += bool(result.is_error)
                print(f"{'FAILED' if result.is_error else 'ok'}: {name}")
        return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(anyio.run(main))
