"""What the doctor says."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from gemini_cli_mcp.json_values import JsonObject

UPGRADE_COMMAND = "npm install -g @google/gemini-cli@latest"

Status = Literal["ok", "note", "problem"]
"""A note is worth knowing, and keeps no search from working."""


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, how it is, and what to do about it."""

    status: Status
    topic: str
    message: str
    fix: str | None = None
    provider: str | None = None
    """Whose it is; one that works is enough."""

    def as_object(self) -> JsonObject:
        return {name: value for name, value in asdict(self).items() if value is not None}


def can_search(findings: Sequence[Finding]) -> bool:
    """Whether nothing stands in the way, and one provider at least has no problem."""
    problems = [finding for finding in findings if finding.status == "problem"]
    if any(finding.provider is None for finding in problems):
        return False
    listed = {finding.provider for finding in findings} - {None}
    return bool(listed - {finding.provider for finding in problems})


def ok(topic: str, message: str) -> Finding:
    return Finding("ok", topic, message)


def note(topic: str, message: str, fix: str | None = None) -> Finding:
    return Finding("note", topic, message, fix)


def problem(topic: str, message: str, fix: str) -> Finding:
    return Finding("problem", topic, message, fix)
