"""The JSON that the owner of a job gets for it."""

from dataclasses import dataclass

from gemini_cli_mcp.jobs.snapshot import JobSnapshot
from gemini_cli_mcp.json_values import JsonObject
from gemini_cli_mcp.research.result_json import to_json
from gemini_cli_mcp.server.pagination import paginate

POLL_AFTER_SECONDS = 5
"""Seconds after which a model may poll again; that call waits for the job anyway."""

SHARED_NOTE = (
    "An earlier call had started this research, so no second one was started; `fresh: true` would."
)


@dataclass(frozen=True)
class JobView:
    """What a call shows of a job."""

    job: JobSnapshot
    now: float
    offset: int = 0
    """Where a long report continues."""
    include_draft: bool = False
    """Whether the report so far is shown while the job is running."""
    is_shared: bool = False
    """Whether an earlier call had started the job for the same question."""


def job_view(view: JobView) -> JsonObject:
    """Return the result of a finished job, or the status of a running one and what to do next."""
    job = view.job
    if job.result:
        page = paginate(job.result, job.id, view.offset)
        return {**page, "note": SHARED_NOTE} if view.is_shared else page
    if job.error:
        return {**to_json(job.error), "status": "done", "job_id": job.id}
    step = f"{job.step} ({view.now - job.started_at:.0f} s)"
    status: JsonObject = {
        "success": True,
        "status": "running",
        "job_id": job.id,
        "poll_after_s": POLL_AFTER_SECONDS,
        "round": job.round_number,
        "message": f"{f'{SHARED_NOTE} ' if view.is_shared else ''}"
        f"The research is still running: {step}. Call deep_search_result with job_id "
        f'"{job.id}" to wait for it; nothing is lost. Do not call deep_search again for this '
        "question.",
    }
    return {**status, **_draft(job, view.now)} if view.include_draft else status


def _draft(job: JobSnapshot, now: float) -> JsonObject:
    """Return the draft of a running job, cut to the size of a result; {} if there is none."""
    draft = job.draft(now)
    if draft is None:
        return {}
    page = paginate(draft, job.id, 0)
    view = {name: page[name] for name in ("result", "verified", "metadata")}
    if "next_offset" in page:
        view["note"] = (
            f"The first {page['next_offset']} of {len(draft.report)} characters of a draft that is "
            "still being verified. When it is done, the full report can be read with `offset`."
        )
    return view
