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
class Behaviour:
    """A model that asks for all its searches in one turn, then answers."""

    model_delay: float = 0
    """Seconds of each request to the model."""
    search_delay: float = 0
    """Seconds of each search."""
    searches: int = 1

    @property
    def seconds(self) -> float:
        """The shortest possible time of a conversation: all searches run at the same time."""
        return 2 * self.model_delay + self.search_delay


INSTANT = Behaviour()


@dataclass(frozen=True)
class ApiProcess:
    """The running API."""

    url: str
    pid: int
    _pipe: Any

    def set(self, behaviour: Behaviour) -> None:
        """Behave like this from now on."""
        self._pipe.send(behaviour)
        self._pipe.recv()

    def take_counts(self) -> tuple[int, int]:
        """Return the number of requests and their bytes since the last call."""
        self._pipe.send("counts")
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
        parent_end.send("stop")
        process.join()


def _serve(pipe: Any) -> None:
    with fake_api() as api:
        api.texts = [model_answer(f"Blue, says [nasa.gov]({REDIRECT}nasa).")]
        pipe.send(api.url)
        while (command := pipe.recv()) != "stop":
            if isinstance(command, Behaviour):
                queries = [f"{QUERY} {number}" for number in range(command.searches)]
                api.calls = [("google_web_search", {"query": query}) for query in queries]
                api.calls_per_turn = command.searches
                api.delay = command.model_delay
                api.search_delay = command.search_delay
                pipe.send(None)
            else:
                pipe.send((len(api.requests), sum(request.size for request in api.requests)))
                api.requests.clear()
