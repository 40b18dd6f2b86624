"""Timeouts and size limits that are not user-configurable.

They are passed around with the settings, so that any component can be given different values:
tests use shorter timeouts.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits of one server, in seconds unless noted otherwise."""

    # CLI runs
    idle_timeout: float = 120.0
    """Silence after which a run is stopped; the gemini CLI itself waits forever."""
    failing_call_timeout: float = 60.0
    """From the start of an API call that keeps failing until its run is stopped; the gemini CLI
    repeats some of them endlessly."""
    connection_timeout: float = 15.0
    """Same if there is no connection, and no call of the run has succeeded."""
    agy_idle_timeout: float = 120.0
    agy_startup_timeout: float = 45.0
    """Silence of agy before its first output: without a sign-in it stalls for a minute."""
    max_turns: int = 50
    """Model calls of one gemini CLI run; a run that needs more is stuck in a loop."""

    # Processes started ahead
    ready_max_age: float = 300.0
    """Age at which a waiting process is replaced: the CLI reads its settings and the date once."""
    ready_first_use_timeout: float = 120.0
    """Time for a first call; a server that is never asked gives its waiting processes back."""
    ready_first_start_delay: float = 0.3
    """From the handshake to the first start: a program may call right after it, and two processes
    that start at the same time slow each other down."""
    ready_start_time: float = 2.0
    """Time until a process is certainly initialized; then the next one may be started."""
    ready_check_interval: float = 0.5
    """Maximum interval between checks whether a missing process may be started."""
    ready_prompt_timeout: float = 10.0
    """Time for a process to accept its prompt. It takes milliseconds, and a few seconds if the
    process is still initializing itself."""
    run_start_time: float = 0.5
    """After the first output of a run: how long it may still need the CPU; then it waits for the
    API."""
    run_start_timeout: float = 5.0
    """Time after which a run without output is considered to wait for something."""
    restart_delays: tuple[float, ...] = (1.0, 5.0, 30.0, 120.0, 600.0)
    """Delays before a process is started again that failed to start or exited before its first
    run."""

    # Shared processes
    acp_startup_timeout: float = 30.0
    """From the start of a process until it is ready."""
    acp_session_open_timeout: float = 15.0
    """Time to open a session; a process that takes longer is considered hung."""
    acp_session_wait_timeout: float = 2.0
    """How long a run waits for a session before it falls back; about the time of a cold start."""
    acp_cancel_timeout: float = 2.0
    """Wait for the reply to a cancelled turn; a CLI that is backing off sends none."""
    acp_drain_timeout: float = 30.0
    """How long the remaining runs of an unresponsive process may continue before it is killed."""
    acp_max_sessions: int = 250
    """Sessions per process. The CLI never closes one: each keeps about 0.4 MB and slows down the
    opening of the next."""
    acp_max_memory_bytes: int = 400 << 20
    """Memory at which a process is replaced; a fresh one uses 210 MB."""

    telemetry_timeout: float = 6.0
    """Wait for the telemetry of a run in a shared process, which writes it every five seconds."""

    # Jobs and calls
    job_ttl: float = 3600.0
    """How long a finished job is kept."""
    max_finished_jobs: int = 100
    """Finished jobs kept per owner."""
    job_abandon_timeout: float = 120.0
    """After a cancelled wait, how long a job runs without another wait before it is cancelled."""
    progress_interval: float = 10.0
    """Silence after which the last progress message is repeated; some clients time out without."""
    client_call_limit: float = 50.0
    """Call duration that every client tolerates. Most time out after 60 s, Claude Desktop after 60
    to 240 s depending on its version."""
    citation_check_grace: float = 2.0
    """Time to check the citations of a report that arrived just as its search was cancelled."""
    stdio_shutdown_timeout: float = 4.0
    """Time for all calls to end; then we exit, and the guardians kill what is still running."""

    # HTTP
    request_head_timeout: float = 10.0
    """Time for a client to send the request line and headers."""
    request_body_timeout: float = 30.0
    """Time for a client to send the body of an MCP request."""
    gateway_body_timeout: float = 60.0
    """Same for a gateway request, which may contain images."""
    forced_shutdown_delay: float = 2.0
    """Time for requests to end after they are cancelled; the rest are cut off."""
    gateway_shutdown_grace: float = 3.0
    """Time for responses in progress to complete when the gateway shuts down."""
    stream_start_wait: float = 3.0
    """Time for an upstream to reject a stream; after that, the client gets keep-alives."""
    keep_alive_interval: float = 5.0
    """Silence after which a waiting client gets a keep-alive."""
    gateway_search_timeout: float = 120.0
    """Total for all searches of one request; then the model answers with the results it has."""
    upstream_models_timeout: float = 10.0
    """Time for each upstream to list its models."""
    missing_endpoint_ttl: float = 600.0
    """How long we remember that an upstream has no Responses API."""
    max_request_items: int = 20_000
    """Messages or items per request."""
    upstream_turn_timeout: float = 1800.0
    """Time for an upstream to complete one response."""
    max_upstream_bytes: int = 64 << 20
    """Bytes of one upstream response."""
    max_upstream_events: int = 500_000
    """Events of one upstream response; usually one per token."""
    max_upstream_tool_calls: int = 1_000
    """Tool calls of one upstream response."""
    continuation_ttl: float = 3600.0
    """How long messages that the client does not see are kept for its next request."""

    # Other
    glm_timeout: float = 60.0
    """Silence of the GLM API after which a search fails."""
    sign_in_timeout: float = 20.0
    """Time for doctor to try the sign-in."""
    dry_run_timeout: float = 60.0
    """Time for the search that doctor runs against a fake API on loopback."""
