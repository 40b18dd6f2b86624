"""A session over HTTP with mcp 1.x: python http_mcp1.py ADDRESS TOKEN."""

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

    async def record_progress(value: float, total: float | None, message: str | None) -> None:
        progress.append(message)
        seen.set()

    headers = {"authorization": f"Bearer {sys.argv[2]}"}
    async with (
        streamablehttp_client(sys.argv[1], headers=headers) as (read, write, _),
        ClientSession(read, write) as session,
    ):
        await session.initialize()
        tools = [tool.name for tool in (await session.list_tools()).tools]
        result = await session.call_tool(
            "search", {"query": "sky"}, progress_callback=record_progress
        )
        try:
            await session.call_tool(
                "search", {"query": "PLEASE HANG"}, read_timeout_seconds=timedelta(seconds=3)
            )
            timeout_outcome = "an answer"
        except McpError as error:
            timeout_outcome = str(error)
        response = await session.call_tool("deep_search", {"query": "sky", "wait_seconds": 0})
        job = response.structuredContent or {}
        job_result = await session.call_tool("deep_search_result", {"job_id": job["job_id"]})
        resources = [str(item.uri) for item in (await session.list_resources()).resources]
        report = await session.read_resource(f"report://{job['job_id']}")
    print(
        json.dumps(
            {
                "tools": tools,
                "progress": progress,
                "result": result.structuredContent,
                "left": timeout_outcome,
                "job": job_result.structuredContent,
                "resources": resources,
                "report": report.contents[0].text,
            }
        )
    )


asyncio.run(main())
