"""Findings: the results of the doctor's checks."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

LIVE_SEARCH = "live search"
"""Topic of the search with `--live`."""
UPGRADE_COMMAND = "npm install -g @google/gemini-cli@latest"

Status = Literal["ok", "note", "problem"]
"""A `note` is worth knowing but does not prevent a search; a `problem` does."""


@dataclass(frozen=True)
class Finding:
    """One result: what was checked, its status, and how to fix it."""

    status: Status
    topic: str
    message: str
    fix: str | None = None
    fix_is_command: bool = True
    """Whether the fix is a command to copy, not a sentence."""
    provider: str | None = None
    """The provider concerned, if any; one working provider is enough for a search."""
    proven: bool = True
    """Whether it was tried, not only assumed."""

    def to_json(self) -> dict[str, object]:
        fields: dict[str, object] = asdict(self)
        if self.fix is None:
            del fields["fix_is_command"]
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True)
class CheckStarted:
    """A check has started; its findings follow."""

    topic: str


def can_search(findings: Sequence[Finding]) -> bool:
    """Return whether at least one provider, and everything that all providers need, works.

    A search that worked is the best proof.
    """
    if any((finding.topic, finding.status) == (LIVE_SEARCH, "ok") for finding in findings):
        return True
    problems = [finding for finding in findings if finding.status == "problem"]
    if any(finding.provider is None for finding in problems):
        return False
    providers = {finding.provider for finding in findings} - {None}
    return bool(providers - {finding.provider for finding in problems})


def ok(topic: str, message: str) -> Finding:
    return Finding("ok", topic, message)


def unproven(topic: str, message: str) -> Finding:
    """Something that is probably right, but was not tried."""
    return Finding("ok", topic, message, proven=False)


def unproven_note(topic: str, message: str) -> Finding:
    """Something worth knowing that prevented a proof."""
    return Finding("note", topic, message, proven=False)


def note(topic: str, message: str, fix: str | None = None, *, is_command: bool = True) -> Finding:
    return Finding("note", topic, message, fix, is_command)


def problem(topic: str, message: str, fix: str, *, is_command: bool = True) -> Finding:
    return Finding("problem", topic, message, fix, is_command)
