"""A job as its owner is told of it."""

from gemini_cli_mcp.jobs import Job
from gemini_cli_mcp.json_values import Object
from gemini_cli_mcp.server.pagination import page

POLL_AFTER = 5
"""Seconds after which a model may ask again; the next call waits for news anyway."""


def state(job: Job, offset: int = 0) -> Object:
    """A job as its owner is told: done, or still running and what to do."""
    job.known = True
    if job.outcome:
        return page(job.outcome, job.id, offset)
    return {
        "success": True,
        "status": "running",
        "job_id": job.id,
        "poll_after_s": POLL_AFTER,
        "round": job.work.so_far()["round"] if job.work else 0,
        "message": f"The research goes on: {job.news.last}. Call "
        f'deep_search_result with job_id "{job.id}" to wait for it; it is not lost. Do not call '
        "deep_search again for this question.",
    }


def draft(job: Job) -> Object:
    """What a running job has by now, in the size of a result; nothing if it is done."""
    so_far = job.work.so_far() if job.work else {}
    if "result" not in so_far:
        return {}
    part = page(so_far, job.id, 0)
    part_of_it = {name: part[name] for name in ("result", "verified", "metadata")}
    if "next_offset" in part:
        whole = len(so_far["result"])
        part_of_it["note"] = (
            f"The first {part['next_offset']} of {whole} characters of a draft that is still being "
            "checked. When it is done, all of it can be read with `offset`."
        )
    return part_of_it
