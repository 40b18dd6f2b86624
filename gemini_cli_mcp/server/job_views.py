"""The JSON that the owner of a job gets for it."""

from gemini_cli_mcp.jobs import Job
from gemini_cli_mcp.json_values import JsonObject
from gemini_cli_mcp.server.pagination import paginate

POLL_AFTER_SECONDS = 5
"""Seconds after which a model may poll again; that call waits for the job anyway."""


def job_view(job: Job, offset: int = 0) -> JsonObject:
    """Return the result of a finished job, or the status of a running one and what to do next."""
    job.id_delivered = True
    if job.result:
        return paginate(job.result, job.id, offset)
    return {
        "success": True,
        "status": "running",
        "job_id": job.id,
        "poll_after_s": POLL_AFTER_SECONDS,
        "round": job.task.snapshot()["round"] if job.task else 0,
        "message": f"The research is still running: {job.progress.latest}. Call "
        f'deep_search_result with job_id "{job.id}" to wait for it; nothing is lost. Do not call '
        "deep_search again for this question.",
    }


def draft_view(job: Job) -> JsonObject:
    """Return the draft of a running job, cut to the size of a result; {} if there is none."""
    snapshot = job.task.snapshot() if job.task else {}
    if "result" not in snapshot:
        return {}
    page = paginate(snapshot, job.id, 0)
    view = {name: page[name] for name in ("result", "verified", "metadata")}
    if "next_offset" in page:
        total = len(snapshot["result"])
        view["note"] = (
            f"The first {page['next_offset']} of {total} characters of a draft that is still being "
            "verified. When it is done, the full report can be read with `offset`."
        )
    return view
