"""The fake Gemini API, in a process of its own: it takes nothing from whoever is measured."""

import multiprocessing
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.support import REDIRECT, report
from tests.support.fake_api import fake_api

QUERY = "why is the sky blue"


@dataclass(frozen=True)
class Api:
    """It searches once, then answers; every conversation is three requests."""

    url: str
    pid: int
    _pipe: Any

    def delay(self, seconds: float) -> None:
        """Take so long for each answer from now on."""
        self._pipe.send(("delay", seconds))
        self._pipe.recv()

    def taken(self) -> tuple[int, int]:
        """Requests and their bytes since this was last asked."""
        self._pipe.send(("taken", 0))
        count, size = self._pipe.recv()
        return count, size


@contextmanager
def running() -> Generator[Api]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs,))
    process.start()
    assert process.pid
    try:
        yield Api(ours.recv(), process.pid, ours)
    finally:
        ours.send(("end", 0))
        process.join()


def _serve(pipe: Any) -> None:
    with fake_api() as api:
        api.calls = [("google_web_search", {"query": QUERY})]
        api.texts = [report(f"Blue, says [nasa.gov]({REDIRECT}nasa).")]
        pipe.send(api.url)
        while (command := pipe.recv())[0] != "end":
            name, value = command
            if name == "delay":
                api.delay = value
                pipe.send(None)
            else:
                pipe.send((len(api.requests), sum(request.size for request in api.requests)))
                api.requests.clear()
