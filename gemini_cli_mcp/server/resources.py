"""Finished reports as resources: `report://{job_id}`, and `report://{job_id}/metadata`."""

import json
from collections.abc import Sequence

from mcp.server.lowlevel.helper_types import ReadResourceContents
from mcp.server.mcpserver.exceptions import ResourceNotFoundError
from mcp.types import Resource, ResourceLink, ResourceTemplate

from gemini_cli_mcp.errors import NotFound
from gemini_cli_mcp.jobs import Job, JobService
from gemini_cli_mcp.json_values import object_or_empty
from gemini_cli_mcp.redaction import redact_known, sanitize_json
from gemini_cli_mcp.sanitize import truncate_line

REPORT_URI_PREFIX = "report://"
METADATA_SUFFIX = "/metadata"
MARKDOWN, JSON = "text/markdown", "application/json"


def report_link(job_id: str, *, metadata: bool = False) -> ResourceLink:
    """Return the link to send with a result that was shortened."""
    if metadata:
        uri = REPORT_URI_PREFIX + job_id + METADATA_SUFFIX
        return ResourceLink(uri=uri, name="All sources and queries", mime_type=JSON)
    return ResourceLink(uri=REPORT_URI_PREFIX + job_id, name="Full report", mime_type=MARKDOWN)


def list_reports(jobs: list[Job], secrets: Sequence[str]) -> list[Resource]:
    """List the reports of the jobs that succeeded."""
    return [
        Resource(
            uri=REPORT_URI_PREFIX + job.id,
            name=truncate_line(redact_known(result["metadata"]["query"], secrets), 80),
            description=f"A finished report, {'' if result.get('verified') else 'not '}verified",
            mime_type=MARKDOWN,
        )
        for job in jobs
        if (result := job.result) and result["success"]
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
    jobs: JobService, owner: str, uri: str, secrets: Sequence[str]
) -> list[ReadResourceContents]:
    """Return a complete report or its metadata."""
    try:
        job_id = uri.removeprefix(REPORT_URI_PREFIX).removesuffix(METADATA_SUFFIX)
        result = jobs.get(job_id, owner).result
    except NotFound:
        result = None
    if not uri.startswith(REPORT_URI_PREFIX) or not result or not result["success"]:
        raise ResourceNotFoundError(f"Unknown resource: {uri}")
    sanitized = object_or_empty(sanitize_json(result, secrets))
    if uri.endswith(METADATA_SUFFIX):
        metadata = json.dumps(sanitized["metadata"], ensure_ascii=False, indent=2)
        return [ReadResourceContents(metadata, mime_type=JSON)]
    return [ReadResourceContents(sanitized["result"], mime_type=MARKDOWN)]
