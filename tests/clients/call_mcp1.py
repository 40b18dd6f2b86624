"""Call the server with mcp 1.x: python call_mcp1.py COMMAND-AS-JSON ARGUMENTS-AS-JSON."""

import asyncio
import json
import os
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


async def main() -> None:
    program, *arguments = json.loads(sys.argv[1])
    server = StdioServerParameters(command=program, args=arguments, env=dict(os.environ))
    progress: list[str | None] = []

    async def record_progress(value: float, total: float | None, message: str | None) -> None:
        progress.append(message)

    async with stdio_client(server) as streams, ClientSession(*streams) as session:
        await session.initialize()
        tools = [tool.name for tool in (await session.list_tools()).tools]
        result = await session.call_tool(
            "search", json.loads(sys.argv[2]), progress_callback=record_progress
        )
    dumped = result.model_dump(mode="json", by_alias=True, exclude_none=True)
    print(json.dumps({"tools": tools, "progress": progress, "result": dumped}))


asyncio.run(main())
