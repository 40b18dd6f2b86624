"""Finished reports as resources: `report://{job_id}`, and `/metadata` behind it for the rest."""

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
    """Stands beside a result of which something was cut."""
    if metadata:
        uri = REPORT_URI_PREFIX + job_id + METADATA_SUFFIX
        return ResourceLink(uri=uri, name="All sources and queries", mime_type=JSON)
    return ResourceLink(uri=REPORT_URI_PREFIX + job_id, name="The whole report", mime_type=MARKDOWN)


def list_reports(jobs: list[Job], secrets: Sequence[str]) -> list[Resource]:
    """The reports of those that ended with one."""
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
    """How the addresses are made."""
    return [
        ResourceTemplate(
            uri_template=REPORT_URI_PREFIX + "{job_id}",
            name="report",
            description="The report of a finished deep research; kept for an hour",
            mime_type=MARKDOWN,
        ),
        ResourceTemplate(
            uri_template=REPORT_URI_PREFIX + "{job_id}" + METADATA_SUFFIX,
            name="metadata",
            description="All its queries, sources and rounds",
            mime_type=JSON,
        ),
    ]


def read_report(
    jobs: JobService, owner: str, uri: str, secrets: Sequence[str]
) -> list[ReadResourceContents]:
    """A report or its metadata, whole."""
    try:
        job_id = uri.removeprefix(REPORT_URI_PREFIX).removesuffix(METADATA_SUFFIX)
        result = jobs.get(job_id, owner).result
    except NotFound:
        result = None
    if not uri.startswith(REPORT_URI_PREFIX) or not result or not result["success"]:
        raise ResourceNotFoundError(f"Unknown resource: {uri}")
    sent = object_or_empty(sanitize_json(result, secrets))
    if uri.endswith(METADATA_SUFFIX):
        metadata = json.dumps(sent["metadata"], ensure_ascii=False, indent=2)
        return [ReadResourceContents(metadata, mime_type=JSON)]
    return [ReadResourceContents(sent["result"], mime_type=MARKDOWN)]
