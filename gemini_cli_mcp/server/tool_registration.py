"""Create tools with our own schemas, whose handlers get the arguments as the client sent them."""

from collections.abc import Awaitable, Callable

from mcp.server.mcpserver.tools import Tool
from mcp.server.mcpserver.utilities.func_metadata import ArgModelBase, FuncMetadata
from mcp.types import CallToolResult, ToolAnnotations
from pydantic import ConfigDict

from gemini_cli_mcp.json_values import JsonObject
from gemini_cli_mcp.server import schemas


class _UncheckedArguments(ArgModelBase):
    """Arguments as the client sent them; the handlers validate them."""

    model_config = ConfigDict(extra="allow")

    def model_dump_one_level(self) -> JsonObject:
        return {"arguments": dict(self.model_extra or {})}


def make_tool(
    function: Callable[..., Awaitable[CallToolResult]],
    *,
    name: str,
    title: str,
    description: str,
    parameters: JsonObject,
    is_destructive: bool = False,
) -> Tool:
    """Create a tool that reports invalid input in our format, not with a library's message."""
    return Tool(
        fn=function,
        name=name,
        title=title,
        description=description,
        parameters=parameters,
        fn_metadata=FuncMetadata(
            arg_model=_UncheckedArguments, output_schema=schemas.OUTPUT_SCHEMA
        ),
        is_async=True,
        context_kwarg="context",
        annotations=ToolAnnotations(
            title=title,
            read_only_hint=not is_destructive,
            destructive_hint=is_destructive,
            idempotent_hint=is_destructive,
            open_world_hint=True,
        ),
    )
