"""The fake Gemini API, in a separate process so that it does not slow down what is measured."""

import multiprocessing
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.support import REDIRECT, model_answer
from tests.support.fake_api import fake_api

QUERY = "why is the sky blue"


@dataclass(frozen=True)
class ApiProcess:
    """A model that searches once, then answers; every conversation is three requests."""

    url: str
    pid: int
    _pipe: Any

    def set_delay(self, seconds: float) -> None:
        """Delay every response by this time from now on."""
        self._pipe.send(("delay", seconds))
        self._pipe.recv()

    def take_counts(self) -> tuple[int, int]:
        """Return the number of requests and their bytes since the last call."""
        self._pipe.send(("counts", 0))
        count, size = self._pipe.recv()
        return count, size


@contextmanager
def run_fake_api() -> Generator[ApiProcess]:
    parent_end, child_end = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(child_end,))
    process.start()
    assert process.pid
    try:
        yield ApiProcess(parent_end.recv(), process.pid, parent_end)
    finally:
        parent_end.send(("stop", 0))
        process.join()


def _serve(pipe: Any) -> None:
    with fake_api() as api:
        api.calls = [("google_web_search", {"query": QUERY})]
        api.texts = [model_answer(f"Blue, says [nasa.gov]({REDIRECT}nasa).")]
        pipe.send(api.url)
        while (command := pipe.recv())[0] != "stop":
            name, value = command
            if name == "delay":
                api.delay = value
                pipe.send(None)
            else:
                pipe.send((len(api.requests), sum(request.size for request in api.requests)))
                api.requests.clear()
