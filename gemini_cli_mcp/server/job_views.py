"""A job as its owner is told of it."""

from gemini_cli_mcp.jobs import Job
from gemini_cli_mcp.json_values import JsonObject
from gemini_cli_mcp.server.pagination import paginate

POLL_AFTER_SECONDS = 5
"""Seconds after which a model may ask again; the next call waits for news anyway."""


def job_view(job: Job, offset: int = 0) -> JsonObject:
    """A job as its owner is told: done, or still running and what to do."""
    job.id_delivered = True
    if job.result:
        return paginate(job.result, job.id, offset)
    return {
        "success": True,
        "status": "running",
        "job_id": job.id,
        "poll_after_s": POLL_AFTER_SECONDS,
        "round": job.task.snapshot()["round"] if job.task else 0,
        "message": f"The research goes on: {job.progress.latest}. Call "
        f'deep_search_result with job_id "{job.id}" to wait for it; it is not lost. Do not call '
        "deep_search again for this question.",
    }


def draft_view(job: Job) -> JsonObject:
    """What a running job has by now, in the size of a result; nothing if it is done."""
    snapshot = job.task.snapshot() if job.task else {}
    if "result" not in snapshot:
        return {}
    page = paginate(snapshot, job.id, 0)
    view = {name: page[name] for name in ("result", "verified", "metadata")}
    if "next_offset" in page:
        whole = len(snapshot["result"])
        view["note"] = (
            f"The first {page['next_offset']} of {whole} characters of a draft that is still being "
            "checked. When it is done, all of it can be read with `offset`."
        )
    return view
