"""Prompts that clients offer to their users, each with one required argument."""

from collections.abc import Mapping
from dataclasses import dataclass

from mcp.types import GetPromptResult, Prompt, PromptArgument, PromptMessage, TextContent

from gemini_cli_mcp import prompts


@dataclass(frozen=True)
class PromptDefinition:
    """A prompt as clients list it, and the template it is rendered from."""

    name: str
    title: str
    description: str
    argument: str
    template: str

    def to_mcp(self) -> Prompt:
        argument = PromptArgument(name=self.argument, required=True)
        return Prompt(
            name=self.name, title=self.title, description=self.description, arguments=[argument]
        )

    def render(self, arguments: Mapping[str, str]) -> GetPromptResult:
        """Return the prompt for these arguments; ValueError if they are not the declared ones."""
        missing = {self.argument} - set(arguments)
        if missing:
            raise ValueError(f"Missing required arguments: {missing}")
        if len(arguments) > 1:
            raise ValueError(f"Error rendering prompt {self.name}")
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
    """Return a rendered prompt; ValueError if there is no such prompt or argument."""
    for prompt in PROMPTS:
        if prompt.name == name:
            return prompt.render(arguments)
    raise ValueError(f"Unknown prompt: {name}")
