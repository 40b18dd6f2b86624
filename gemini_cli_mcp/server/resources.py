"""Finished reports as resources: `report://{job_id}`, and `/metadata` behind it for the rest."""

import json
from collections.abc import Sequence

from mcp.server.lowlevel.helper_types import ReadResourceContents
from mcp.server.mcpserver.exceptions import ResourceNotFoundError
from mcp.types import Resource, ResourceLink, ResourceTemplate

from gemini_cli_mcp.errors import NotFound
from gemini_cli_mcp.jobs import Job, Jobs
from gemini_cli_mcp.json_values import as_object
from gemini_cli_mcp.redaction import clean, redact_known
from gemini_cli_mcp.sanitize import one_line

REPORT = "report://"
METADATA = "/metadata"
MARKDOWN, JSON = "text/markdown", "application/json"


def link(job_id: str, *, metadata: bool = False) -> ResourceLink:
    """Stands beside a result of which something was cut."""
    if metadata:
        uri = REPORT + job_id + METADATA
        return ResourceLink(uri=uri, name="All sources and queries", mime_type=JSON)
    return ResourceLink(uri=REPORT + job_id, name="The whole report", mime_type=MARKDOWN)


def listed(jobs: list[Job], secrets: Sequence[str]) -> list[Resource]:
    """The reports of those that ended with one."""
    return [
        Resource(
            uri=REPORT + job.id,
            name=one_line(redact_known(outcome["metadata"]["query"], secrets), 80),
            description=f"A finished report, {'' if outcome.get('verified') else 'not '}verified",
            mime_type=MARKDOWN,
        )
        for job in jobs
        if (outcome := job.outcome) and outcome["success"]
    ]


def templates() -> list[ResourceTemplate]:
    """How the addresses are made."""
    return [
        ResourceTemplate(
            uri_template=REPORT + "{job_id}",
            name="report",
            description="The report of a finished deep research; kept for an hour",
            mime_type=MARKDOWN,
        ),
        ResourceTemplate(
            uri_template=REPORT + "{job_id}" + METADATA,
            name="metadata",
            description="All its queries, sources and rounds",
            mime_type=JSON,
        ),
    ]


def read(jobs: Jobs, owner: str, uri: str, secrets: Sequence[str]) -> list[ReadResourceContents]:
    """A report or its metadata, whole."""
    try:
        job_id = uri.removeprefix(REPORT).removesuffix(METADATA)
        outcome = jobs.get(job_id, owner).outcome
    except NotFound:
        outcome = None
    if not uri.startswith(REPORT) or not outcome or not outcome["success"]:
        raise ResourceNotFoundError(f"Unknown resource: {uri}")
    sent = as_object(clean(outcome, secrets))
    if uri.endswith(METADATA):
        metadata = json.dumps(sent["metadata"], ensure_ascii=False, indent=2)
        return [ReadResourceContents(metadata, mime_type=JSON)]
    return [ReadResourceContents(sent["result"], mime_type=MARKDOWN)]
