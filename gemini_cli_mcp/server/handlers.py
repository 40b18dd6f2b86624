"""A tool with a schema of our own, whose arguments come to us as the client sent them."""

from collections.abc import Awaitable, Callable

from mcp.server.mcpserver.tools import Tool
from mcp.server.mcpserver.utilities.func_metadata import ArgModelBase, FuncMetadata
from mcp.types import CallToolResult, ToolAnnotations
from pydantic import ConfigDict

from gemini_cli_mcp.json_values import Object
from gemini_cli_mcp.server import schemas


class _Unchecked(ArgModelBase):
    """Arguments as the client sent them; our own code checks them."""

    model_config = ConfigDict(extra="allow")

    def model_dump_one_level(self) -> Object:
        return {"arguments": dict(self.model_extra or {})}


def tool(
    function: Callable[..., Awaitable[CallToolResult]],
    *,
    name: str,
    title: str,
    description: str,
    parameters: Object,
    ends_something: bool = False,
) -> Tool:
    """Registered so that bad input is answered in our form and not by a library's text."""
    return Tool(
        fn=function,
        name=name,
        title=title,
        description=description,
        parameters=parameters,
        fn_metadata=FuncMetadata(arg_model=_Unchecked, output_schema=schemas.OUTPUT_SCHEMA),
        is_async=True,
        context_kwarg="context",
        annotations=ToolAnnotations(
            title=title,
            read_only_hint=not ends_something,
            destructive_hint=ends_something,
            idempotent_hint=ends_something,
            open_world_hint=True,
        ),
    )
