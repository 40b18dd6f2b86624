"""Run all benchmarks, print the page, and write it to docs/ if it is complete."""

import sys

import anyio

from scripts.benchmark import api, document, measure
from scripts.benchmark.contenders import CLI_DEFAULT, CLI_LEAN, OURS_COLD, OURS_WARM, PEERS
from scripts.benchmark.gateway import measure_gateway
from scripts.benchmark.team_server_load import load


async def main(*, peers: bool) -> None:
    measurements: list[measure.Measurement] = []
    with api.run_fake_api() as fake_api:
        for contender in [OURS_WARM, OURS_COLD, CLI_LEAN, CLI_DEFAULT, *(PEERS if peers else [])]:
            log(f"{contender.name} ...")
            measurements.append(await measure.measure_contender(contender, fake_api))
        log("deep search ...")
        deep_search = await measure.measure_deep_search(fake_api)
        log("telemetry ...")
        telemetry = await measure.measure_telemetry(fake_api)
    log("server startup ...")
    startup = measure.measure_startup()
    log("gateway ...")
    gateway = await measure_gateway()
    log("team server ...")
    team_server = await load()
    log("citation gate and JSON finder ...")
    results = document.Results(
        measurements,
        startup,
        deep_search,
        telemetry,
        measure.measure_citation_gate(),
        measure.measure_json_finder(),
        gateway,
        team_server,
    )
    sys.stdout.write(document.render_page(results))
    if peers:
        document.write_docs(results)
    else:
        log("Not written to docs/: that needs --peers.")


def log(text: str) -> None:
    sys.stderr.write(text + "\n")


if __name__ == "__main__":
    anyio.run(lambda: main(peers="--peers" in sys.argv[1:]))
