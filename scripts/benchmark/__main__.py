"""Run everything, show it, and write it down if it is complete."""

import sys

import anyio

from scripts.benchmark import api, document, measure
from scripts.benchmark.gateway import gateway
from scripts.benchmark.http import load
from scripts.benchmark.subjects import DEFAULT, LEAN, PEER_SUBJECTS, SINGLE, WARM


async def main(*, peers: bool) -> None:
    subjects: list[measure.Measured] = []
    with api.running() as fake:
        for subject in [WARM, SINGLE, LEAN, DEFAULT, *(PEER_SUBJECTS if peers else [])]:
            say(f"{subject.name} ...")
            subjects.append(await measure.measured(subject, fake))
        say("deep search ...")
        deep = await measure.deep_search(fake)
        say("telemetry ...")
        telemetry = await measure.telemetry(fake)
    say("server start ...")
    start = measure.start_up()
    say("gateway ...")
    through = await gateway()
    say("a team's server ...")
    team = await load()
    say("JSON finder ...")
    gate = measure.gate()
    results = document.Results(
        subjects, start, deep, telemetry, gate, measure.finder(), through, team
    )
    sys.stdout.write(document.page(results))
    if peers:
        document.write(results)
    else:
        say("Not written to docs/: that needs --peers.")


def say(text: str) -> None:
    sys.stderr.write(text + "\n")


if __name__ == "__main__":
    anyio.run(lambda: main(peers="--peers" in sys.argv[1:]))
