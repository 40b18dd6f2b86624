"""Call the Gemini API directly with the user's key, through google-genai (the extra `api`)."""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, cast

import anyio.to_thread

from gemini_cli_mcp import prompts
from gemini_cli_mcp.call_context import CallContext, FindingsReporter
from gemini_cli_mcp.errors import (
    ConfigError,
    ExecutionFailed,
    GeminiMcpError,
    InvalidInput,
    NoProvider,
    NotSignedIn,
    TimedOut,
)
from gemini_cli_mcp.installation import extra_install_command
from gemini_cli_mcp.json_values import JsonValue
from gemini_cli_mcp.providers.base import GroundingOptions, Reply
from gemini_cli_mcp.providers.gemini_api_reply import parse_reply
from gemini_cli_mcp.providers.quota_breaker import QuotaBreakers, breaker_key
from gemini_cli_mcp.providers.quota_errors import quota_error
from gemini_cli_mcp.sanitize import error_excerpt
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.types import Thinking, thinking_setting

if TYPE_CHECKING:
    from google.genai import Client
    from google.genai.types import (
        GenerateContentConfigDict,
        GoogleSearchDict,
        ThinkingConfigDict,
        ThinkingLevel,
    )

MODEL_ALIASES = {
    "flash": "gemini-flash-latest",
    "flash-lite": "gemini-flash-lite-latest",
    "pro": "gemini-pro-latest",
    "auto": "gemini-flash-latest",
}
"""API model names for the aliases of the CLI."""
SIGN_IN_HINT = "Set GEMINI_API_KEY to a valid key, or the variables of Vertex AI."


class GeminiApiProvider:
    """The provider `api`."""

    name = "api"
    supports_thoughts = True

    def __init__(
        self, settings: Settings, environ: Mapping[str, str], breakers: QuotaBreakers
    ) -> None:
        # At most an alias is configured; the response contains the actual model name.
        self.configured_model: str | None = None
        self._model = _resolve_alias(settings.model or "flash")
        self._correction_model = _resolve_alias(
            settings.correction_model or settings.model or "flash"
        )
        self._environ = environ
        self._breakers = breakers
        self._secrets = settings.secrets

    async def ask(self, prompt: str, context: CallContext, file: Path | None = None) -> Reply:
        """Answer with Google Search and URL context; a correction gets no tools."""
        context.progress("asking the model")
        if file:
            return await self._generate(
                self._correction_model, prompts.inline_file(prompt, file), {}, context
            )
        config: GenerateContentConfigDict = {
            "tools": [{"google_search": {}}, {"url_context": {}}],
            "system_instruction": prompts.template_path("system-prompt").read_text("utf-8"),
        }
        return await self._generate(self._model, prompt, config, context, links=True)

    async def grounded_search(
        self, query: str, options: GroundingOptions, context: CallContext
    ) -> Reply:
        """Send one request whose only tool is Google Search."""
        context.progress("searching")
        model = _resolve_alias(options.model)
        thinking_config = _thinking_config(model, options.thinking)
        thinking_config["include_thoughts"] = options.include_thoughts
        search_options: GoogleSearchDict = {}
        if options.since:
            search_options["time_range_filter"] = {
                "start_time": options.since,
                "end_time": datetime.now(UTC),
            }
        config: GenerateContentConfigDict = {
            "tools": [{"google_search": search_options}],
            "thinking_config": thinking_config,
        }
        return await self._generate(model, query, config, context)

    async def _generate(
        self,
        model: str,
        prompt: str,
        config: "GenerateContentConfigDict",
        context: CallContext,
        *,
        links: bool = False,
    ) -> Reply:
        names = ("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_CLOUD_PROJECT")
        key = breaker_key("api", *map(self._environ.get, names), model)
        with self._breakers.guard(key):
            reply = await self._request(model, prompt, config, links=links)
        FindingsReporter(context).report_rest(reply.searches, reply.fetches, reply.usage)
        return reply

    async def _request(
        self, model: str, prompt: str, config: "GenerateContentConfigDict", *, links: bool
    ) -> Reply:
        # In a thread, because the import takes more than a second.
        await anyio.to_thread.run_sync(_import_genai)
        try:
            # One client per request: a client is bound to the event loop that it was used in.
            async with self._create_client().aio as client:
                # Its type mentions PIL, which is not installed.
                response = await client.models.generate_content(  # pyright: ignore[reportUnknownMemberType]
                    model=model, contents=prompt, config=config
                )
        except GeminiMcpError:
            raise
        except Exception as error:  # noqa: BLE001 - the library's errors are translated here
            raise _translate_error(error, self._secrets) from None
        fields = response.model_dump(exclude_none=True, mode="json", by_alias=True)
        return parse_reply(cast("JsonValue", fields), model, links=links)

    def _create_client(self) -> "Client":
        """Create a client that interprets the variables as the gemini CLI does."""
        from google.genai import Client
        from google.genai.types import HttpOptions, HttpRetryOptions

        key = self._environ.get("GEMINI_API_KEY")
        vertex_key = self._environ.get("GOOGLE_API_KEY")
        vertex = self._environ.get("GOOGLE_GENAI_USE_VERTEXAI", "").lower() in ("true", "1")
        if not (key or vertex_key or vertex):
            raise NotSignedIn("The provider `api` has no API key.", hint=SIGN_IN_HINT)
        options = HttpOptions(
            base_url=self._environ.get("GOOGLE_GEMINI_BASE_URL") or None,
            # Retries are handled by the research layer.
            retry_options=HttpRetryOptions(attempts=1),
        )
        if key:
            return Client(vertexai=False, api_key=key, http_options=options)
        if vertex_key:
            return Client(vertexai=vertex, api_key=vertex_key, http_options=options)
        return Client(
            vertexai=True,
            project=self._environ.get("GOOGLE_CLOUD_PROJECT"),
            location=self._environ.get("GOOGLE_CLOUD_LOCATION"),
            http_options=options,
        )


def _import_genai() -> None:
    """Load the library, so that later imports take no time."""
    try:
        from google import genai  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError:
        raise NoProvider(
            "The provider `api` requires the package google-genai.",
            hint=f"Install it with `{extra_install_command('api')}`.",
        ) from None


def _resolve_alias(model: str) -> str:
    return MODEL_ALIASES.get(model) or (
        MODEL_ALIASES["auto"] if model.startswith("auto") else model
    )


def _thinking_config(model: str, thinking: Thinking) -> "ThinkingConfigDict":
    setting = thinking_setting(thinking, model)
    if isinstance(setting, int):
        return {"thinking_budget": setting}
    return {"thinking_level": cast("ThinkingLevel", setting)}  # the library converts the name


def _translate_error(error: Exception, secrets: Sequence[str]) -> GeminiMcpError:
    """Translate an error of the library or the API, with all secrets redacted."""
    from google.auth.exceptions import GoogleAuthError
    from google.genai.errors import APIError
    from httpx2 import HTTPError, TimeoutException

    type_name = type(error).__name__
    if isinstance(error, GoogleAuthError):
        return NotSignedIn(f"Vertex AI authentication failed ({type_name}).", hint=SIGN_IN_HINT)
    if isinstance(error, TimeoutException):
        return TimedOut("The Gemini API did not respond in time.")
    if isinstance(error, HTTPError):
        return ExecutionFailed(f"The Gemini API cannot be reached ({type_name}).")
    if not isinstance(error, APIError):
        return ExecutionFailed(f"The Gemini API returned an unreadable response ({type_name}).")
    code, status = error.code or 0, error.status or ""
    message = error_excerpt(error.message or "", secrets)
    # The library does not type the body of the response.
    details = json.dumps(cast("JsonValue", error.details))  # pyright: ignore[reportUnknownMemberType]
    if code == 429 or status == "RESOURCE_EXHAUSTED":
        return quota_error(f"{message}\n{details}")
    if code in (401, 403) or (
        code == 400 and ("API key" in message or "API_KEY_INVALID" in details)
    ):
        return NotSignedIn(f"The Gemini API rejected the key: {message}", hint=SIGN_IN_HINT)
    if code == 404:
        return ConfigError(
            f"The Gemini API does not recognize the model: {message}",
            hint="Set GEMINI_MODEL, GEMINI_MCP_GROUNDED_MODEL or `model` to a model that your key "
            "can use.",
        )
    if code == 400 and re.search("thinking|budget", message, re.IGNORECASE):
        return InvalidInput(
            f"`thinking`: no provider supports this level for this model: {message}"
        )
    return ExecutionFailed(f"The Gemini API failed ({code} {status}): {message}")
