"""Finished reports as resources: `report://{job_id}`, and `report://{job_id}/metadata`."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mcp import MCPError
from mcp.types import (
    INVALID_PARAMS,
    ReadResourceResult,
    Resource,
    ResourceLink,
    ResourceTemplate,
    TextResourceContents,
)

from gemini_cli_mcp.sanitize import redact_known, sanitize_json, truncate_line

if TYPE_CHECKING:
    from gemini_cli_mcp.jobs.snapshot import JobSnapshot

REPORT_URI_PREFIX = "report://"
METADATA_SUFFIX = "/metadata"
MARKDOWN, JSON = "text/markdown", "application/json"


def report_link(job_id: str, *, metadata: bool = False) -> ResourceLink:
    """Return the link to send with a result that was shortened."""
    if metadata:
        uri = REPORT_URI_PREFIX + job_id + METADATA_SUFFIX
        return ResourceLink(uri=uri, name="All sources and queries", mime_type=JSON)
    return ResourceLink(uri=REPORT_URI_PREFIX + job_id, name="Full report", mime_type=MARKDOWN)


def list_reports(jobs: "Sequence[JobSnapshot]", secrets: Sequence[str]) -> list[Resource]:
    """List the reports of the jobs that succeeded."""
    return [
        Resource(
            uri=REPORT_URI_PREFIX + job.id,
            name=truncate_line(redact_known(job.result.metadata.question, secrets), 80),
            description=f"A finished report, {'' if job.is_verified else 'not '}verified",
            mime_type=MARKDOWN,
        )
        for job in jobs
        if job.result
    ]


def report_templates() -> list[ResourceTemplate]:
    """Return the URI templates of reports and their metadata."""
    return [
        ResourceTemplate(
            uri_template=REPORT_URI_PREFIX + "{job_id}",
            name="report",
            description="The report of a finished deep search; kept for an hour",
            mime_type=MARKDOWN,
        ),
        ResourceTemplate(
            uri_template=REPORT_URI_PREFIX + "{job_id}" + METADATA_SUFFIX,
            name="metadata",
            description="All queries, sources and rounds of a report",
            mime_type=JSON,
        ),
    ]


def read_report(
    jobs: "Sequence[JobSnapshot]", uri: str, secrets: Sequence[str]
) -> ReadResourceResult:
    """Return a complete report or its metadata; MCPError if none of the jobs has it."""
    from gemini_cli_mcp.research.result_json import metadata_json

    for job in jobs:
        report_uri = REPORT_URI_PREFIX + job.id
        if job.result and uri == report_uri:
            return _text_resource(uri, str(sanitize_json(job.result.report, secrets)), MARKDOWN)
        if job.result and uri == report_uri + METADATA_SUFFIX:
            metadata = sanitize_json(metadata_json(job.result), secrets)
            return _text_resource(uri, json.dumps(metadata, ensure_ascii=False, indent=2), JSON)
    raise MCPError(INVALID_PARAMS, f"Unknown resource: {uri}", {"uri": uri})


def _text_resource(uri: str, text: str, mime_type: str) -> ReadResourceResult:
    contents = TextResourceContents(uri=uri, text=text, mime_type=mime_type)
    return ReadResourceResult(contents=[contents])
