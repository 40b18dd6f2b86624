"""Run the benchmarks and print a page, or write it to docs/."""

import sys

import anyio

from scripts.benchmark import document, waits
from scripts.benchmark.api import ApiProcess, run_fake_api
from scripts.benchmark.contenders import CLI_LEAN, OTHER_PEERS, OUR_TOOLS, OURS, PEER
from scripts.benchmark.internals import describe_internals
from scripts.benchmark.startup import measure_startup

OPTIONS = ("--write", "--internals")


async def measure_waits(api: ApiProcess) -> document.Results:
    log("searches in a turn ...")
    turns = await waits.measure_turns([OURS, CLI_LEAN, PEER], api)
    log("tools ...")
    contenders = [*OUR_TOOLS, CLI_LEAN, PEER, *OTHER_PEERS]
    single_calls = await waits.measure_single_calls(contenders, api)
    memory = {item.name: await waits.measure_memory(item, api) for item in contenders}
    log("calls after the start ...")
    after_start = await waits.measure_calls_after_start(api)
    log("alternating tools ...")
    alternating = await waits.measure_alternating_calls(api)
    log("bursts ...")
    bursts = {OURS.name: await waits.measure_bursts(OURS, (1, 10, 50), api)}
    for contender in (CLI_LEAN, PEER, *OTHER_PEERS):
        bursts[contender.name] = await waits.measure_bursts(contender, (10,), api, repetitions=1)
    log("deep search ...")
    deep_search = await waits.measure_deep_search(api)
    log("idle server ...")
    idle_server = await waits.measure_idle_server(api)
    log("startup ...")
    return document.Results(
        turns,
        single_calls,
        memory,
        after_start,
        alternating,
        bursts,
        deep_search,
        idle_server,
        measure_startup(),
    )


async def main(options: list[str]) -> None:
    with run_fake_api() as api:
        if "--internals" in options:
            sys.stdout.write(await describe_internals(api))
            return
        results = await measure_waits(api)
    sys.stdout.write(document.render_page(results))
    if "--write" in options:
        document.write_docs(results)


def log(text: str) -> None:
    sys.stderr.write(text + "\n")


if __name__ == "__main__":
    if unknown := set(sys.argv[1:]) - set(OPTIONS):
        sys.exit(f"Unknown option: {', '.join(unknown)}. Options: {', '.join(OPTIONS)}")
    anyio.run(main, sys.argv[1:])
