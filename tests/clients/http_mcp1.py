"""A visit over HTTP as mcp 1.x makes it: python http_mcp1.py ADDRESS TOKEN."""

import asyncio
import json
import sys
from datetime import timedelta

from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client
from mcp.shared.exceptions import McpError


async def main() -> None:
    progress: list[str | None] = []
    seen = asyncio.Event()

    async def note(value: float, total: float | None, message: str | None) -> None:
        progress.append(message)
        seen.set()

    headers = {"authorization": f"Bearer {sys.argv[2]}"}
    async with (
        streamablehttp_client(sys.argv[1], headers=headers) as (read, write, _),
        ClientSession(read, write) as session,
    ):
        await session.initialize()
        tools = [tool.name for tool in (await session.list_tools()).tools]
        result = await session.call_tool("search", {"query": "sky"}, progress_callback=note)
        try:
            await session.call_tool(
                "search", {"query": "PLEASE HANG"}, read_timeout_seconds=timedelta(seconds=3)
            )
            left = "an answer"
        except McpError as error:
            left = str(error)
        job = await session.call_tool("deep_search", {"query": "sky", "wait_seconds": 0})
        told = job.structuredContent or {}
        done = await session.call_tool("deep_search_result", {"job_id": told["job_id"]})
        resources = [str(item.uri) for item in (await session.list_resources()).resources]
        report = await session.read_resource(f"report://{told['job_id']}")
    print(
        json.dumps(
            {
                "tools": tools,
                "progress": progress,
                "result": result.structuredContent,
                "left": left,
                "job": done.structuredContent,
                "resources": resources,
                "report": report.contents[0].text,
            }
        )
    )


asyncio.run(main())
