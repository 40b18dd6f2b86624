"""Prompts that clients offer to their users, each with one required argument."""

from collections.abc import Mapping
from dataclasses import dataclass

from mcp import MCPError
from mcp.types import (
    INVALID_PARAMS,
    GetPromptResult,
    Prompt,
    PromptArgument,
    PromptMessage,
    TextContent,
)

from gemini_cli_mcp import prompts
from gemini_cli_mcp.sanitize import truncate_line


@dataclass(frozen=True)
class PromptDefinition:
    """A prompt as clients list it, and the template it is rendered from."""

    name: str
    title: str
    description: str
    argument: str
    template: str

    def to_mcp(self) -> Prompt:
        description = f"The {self.argument} to research"
        argument = PromptArgument(name=self.argument, description=description, required=True)
        return Prompt(
            name=self.name, title=self.title, description=self.description, arguments=[argument]
        )

    def render(self, arguments: Mapping[str, str]) -> GetPromptResult:
        """Return the prompt for these arguments; MCPError if they are not the declared ones."""
        for name in arguments:
            if name != self.argument:
                message = f"`{truncate_line(name, 100)}`: unknown; did you mean `{self.argument}`?"
                raise MCPError(INVALID_PARAMS, message)
        if not arguments.get(self.argument, "").strip():
            raise MCPError(INVALID_PARAMS, f"The prompt {self.name} needs `{self.argument}`.")
        text = prompts.render(self.template, **arguments)
        message = PromptMessage(role="user", content=TextContent(type="text", text=text))
        return GetPromptResult(description=self.description, messages=[message])


PROMPTS = (
    PromptDefinition(
        name="research",
        title="Research a topic",
        description="Research a topic thoroughly, with sources.",
        argument="topic",
        template="research-prompt",
    ),
    PromptDefinition(
        name="fact-check",
        title="Check a claim",
        description="Check on the web whether a claim is true.",
        argument="claim",
        template="fact-check-prompt",
    ),
)


def get_prompt(name: str, arguments: Mapping[str, str]) -> GetPromptResult:
    """Return a rendered prompt; MCPError if there is no such prompt or argument."""
    for prompt in PROMPTS:
        if prompt.name == name:
            return prompt.render(arguments)
    known = ", ".join(prompt.name for prompt in PROMPTS)
    raise MCPError(INVALID_PARAMS, f"Unknown prompt {truncate_line(name, 100)!r}; known: {known}")
