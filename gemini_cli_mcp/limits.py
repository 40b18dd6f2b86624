"""Waits and bounds that no variable sets.

They are part of the configuration, so that whoever builds a part of the program can give it
others: tests do, and need not wait as long as users would.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """In seconds, unless a name or a comment says otherwise."""

    # Runs of a CLI
    idle_timeout: float = 120.0
    """Silence after which a run is given up: the gemini CLI itself waits for ever."""
    search_idle_timeout: float = 60.0
    """The same while a search is under way, which the gemini CLI may be repeating without end."""
    agy_idle_timeout: float = 120.0
    agy_startup_timeout: float = 45.0
    """The same before the first word: without a sign-in agy stalls for a minute."""
    max_turns: int = 50
    """Model calls of one run of the gemini CLI; one that needs more is lost in a loop."""

    # Warm processes
    acp_startup_timeout: float = 30.0
    """From the start of a process until it is ready."""
    acp_session_open_timeout: float = 15.0
    """Opening a session; a process that takes longer is thought to hang."""
    acp_session_wait_timeout: float = 2.0
    """What a run waits for its session, about a cold start; then it goes elsewhere."""
    acp_cancel_timeout: float = 2.0
    """For the answer to a cancelled session; one in a back-off of the CLI gives none."""
    acp_drain_timeout: float = 30.0
    """What the runs of a process that does not obey have to end; then it is ended."""
    acp_restart_delays: tuple[float, ...] = (1.0, 5.0, 30.0, 120.0, 600.0)
    """Before another try after a process that did not start, or died before it was of use."""
    acp_max_sessions: int = 250
    """The CLI never closes one: each keeps some 0.4 MB, and makes opening the next one slower."""
    acp_max_memory_bytes: int = 400 << 20
    """Bytes; a fresh one has 210 MB."""

    telemetry_timeout: float = 6.0
    """For a process that goes on to write what a run saw: it does so every five seconds."""

    # Jobs and calls
    job_ttl: float = 3600.0
    """How long a finished job is kept."""
    max_finished_jobs: int = 100
    """Finished jobs of one owner that are kept."""
    job_abandon_timeout: float = 120.0
    """Without anybody waiting, after a wait was cancelled, until a job is ended."""
    progress_interval: float = 10.0
    """Silence after which the last progress is repeated: some clients give up on silence."""
    client_call_limit: float = 50.0
    """What a client surely lets a call take. Most wait 60; Claude Desktop between 60 and 240,
    depending on its version."""
    citation_check_grace: float = 2.0
    """For the check of a report that came just when its deep search was cancelled."""
    stdio_shutdown_timeout: float = 4.0
    """For all calls together to end; then we leave, and the guardians see to it."""

    # HTTP
    request_head_timeout: float = 10.0
    """For a client to send the head of a request."""
    request_body_timeout: float = 30.0
    """The same for the body of an MCP request."""
    gateway_body_timeout: float = 60.0
    """The same for the gateway's, which may carry pictures."""
    forced_shutdown_delay: float = 2.0
    """For requests to end when they are told to; whatever has not by then is cut off."""
    gateway_shutdown_grace: float = 3.0
    """For running answers to end when the gateway is told to."""
    stream_start_wait: float = 3.0
    """For an upstream to refuse a stream; from then on the client gets signs of life."""
    keep_alive_interval: float = 5.0
    """Silence after which a waiting client gets one."""
    gateway_search_timeout: float = 120.0
    """For all searches of one request; then the model answers with what there is."""
    upstream_models_timeout: float = 10.0
    """For each of several upstreams to tell its models."""
    missing_endpoint_ttl: float = 600.0
    """How long it is remembered that an upstream knows no responses."""
    max_request_items: int = 20_000
    """Messages or items of one request."""
    upstream_turn_timeout: float = 1800.0
    """For an upstream to come to the end of one answer."""
    max_upstream_bytes: int = 64 << 20
    """Bytes of one answer of an upstream."""
    max_upstream_events: int = 500_000
    """Events of one answer of an upstream: a token mostly comes as one."""
    max_upstream_tool_calls: int = 1_000
    """Tool calls of one answer of an upstream."""
    continuation_ttl: float = 3600.0
    """How long the half of a turn that a client does not see is kept for when it comes back."""

    # Others
    glm_timeout: float = 60.0
    """Silence of GLM's API after which a search is given up."""
    dry_run_timeout: float = 60.0
    """For the search that doctor makes on loopback."""
