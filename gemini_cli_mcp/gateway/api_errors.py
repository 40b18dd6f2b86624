"""Errors in the format of the OpenAI API: our own, and those of upstreams with all their fields."""

from dataclasses import dataclass

from gemini_cli_mcp.json_values import JsonObject, object_or_empty


@dataclass(frozen=True)
class ApiError:
    """An `error` object."""

    fields: JsonObject
    """The complete object: an upstream may send more fields than the API defines."""

    @classmethod
    def of(
        cls,
        message: str,
        error_type: str = "api_error",
        code: str = "upstream_failed",
        param: str | None = None,
    ) -> "ApiError":
        """Return an error of our own."""
        return cls({"message": message, "type": error_type, "param": param, "code": code})

    @classmethod
    def parse(cls, error: object) -> "ApiError | None":
        """Return an upstream's error, if it is one; some send only a string."""
        if isinstance(error, str) and error:
            return cls.of(error)
        fields = object_or_empty(error)
        return cls(fields) if fields else None

    @property
    def message(self) -> str:
        return str(self.fields.get("message") or "")

    @property
    def code(self) -> str:
        return str(self.fields.get("code"))

    @property
    def type(self) -> str:
        return str(self.fields.get("type"))
