"""Waits and bounds that no variable sets.

They are part of the configuration, so that whoever builds a part of the program can give it
others: tests do, and need not wait as long as users would.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """In seconds, unless a name or a comment says otherwise."""

    # Runs of a CLI
    idle: float = 120.0
    """Silence after which a run is given up: the gemini CLI itself waits for ever."""
    idle_in_search: float = 60.0
    """The same while a search is under way, which the gemini CLI may be repeating without end."""
    agy_idle: float = 120.0
    agy_idle_at_start: float = 45.0
    """The same before the first word: without a sign-in agy stalls for a minute."""
    max_turns: int = 50
    """Model calls of one run of the gemini CLI; one that needs more is lost in a loop."""

    # Warm processes
    warm_start: float = 30.0
    """From the start of a process until it is ready."""
    session_open: float = 15.0
    """Opening a session; a process that takes longer is thought to hang."""
    session_wait: float = 2.0
    """What a run waits for its session, about a cold start; then it goes elsewhere."""
    cancel_answer: float = 2.0
    """For the answer to a cancelled session; one in a back-off of the CLI gives none."""
    unhealthy_drain: float = 30.0
    """What the runs of a process that does not obey have to end; then it is ended."""
    warm_restarts: tuple[float, ...] = (1.0, 5.0, 30.0, 120.0, 600.0)
    """Before another try after a process that did not start, or died before it was of use."""
    sessions_per_process: int = 250
    """The CLI never closes one: each keeps some 0.4 MB, and makes opening the next one slower."""
    process_memory: int = 400 << 20
    """Bytes; a fresh one has 210 MB."""

    telemetry: float = 6.0
    """For a process that goes on to write what a run saw: it does so every five seconds."""

    # Jobs and calls
    job_kept: float = 3600.0
    """How long a finished job is kept."""
    jobs_kept: int = 100
    """Finished jobs of one owner that are kept."""
    job_abandoned: float = 120.0
    """Without anybody waiting, after a wait was cancelled, until a job is ended."""
    heartbeat: float = 10.0
    """Silence after which the last progress is repeated: some clients give up on silence."""
    client_wait: float = 50.0
    """What a client surely lets a call take. Most wait 60; Claude Desktop between 60 and 240,
    depending on its version."""
    check_after_cancel: float = 2.0
    """For the check of a report that came just when its deep search was cancelled."""
    stdio_shutdown: float = 4.0
    """For all calls together to end; then we leave, and the guardians see to it."""

    # HTTP
    request_head: float = 10.0
    """For a client to send the head of a request."""
    request_body: float = 30.0
    """The same for the body of an MCP request."""
    gateway_body: float = 60.0
    """The same for the gateway's, which may carry pictures."""
    shutdown_cut_off: float = 2.0
    """For requests to end when they are told to; whatever has not by then is cut off."""
    gateway_grace: float = 3.0
    """For running answers to end when the gateway is told to."""
    upstream_refusal: float = 3.0
    """For an upstream to refuse a stream; from then on the client gets signs of life."""
    keep_alive: float = 5.0
    """Silence after which a waiting client gets one."""
    gateway_searches: float = 120.0
    """For all searches of one request; then the model answers with what there is."""
    upstream_models: float = 10.0
    """For each of several upstreams to tell its models."""
    responses_unsupported: float = 600.0
    """How long it is remembered that an upstream knows no responses."""
    request_items: int = 20_000
    """Messages or items of one request."""
    upstream_round: float = 1800.0
    """For an upstream to come to the end of one answer."""
    upstream_bytes: int = 64 << 20
    """Bytes of one answer of an upstream."""
    upstream_events: int = 500_000
    """Events of one answer of an upstream: a token mostly comes as one."""
    upstream_calls: int = 1_000
    """Tool calls of one answer of an upstream."""
    parked_turn: float = 3600.0
    """How long the half of a turn that a client does not see is kept for when it comes back."""

    # Others
    glm: float = 60.0
    """Silence of GLM's API after which a search is given up."""
    dry_run: float = 60.0
    """For the search that doctor makes on loopback."""
