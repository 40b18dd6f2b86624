"""The order in which the events of one response may come: a small machine that knows no other."""

from typing import Any

PARTS = {
    "response.content_part.added": ("content_index", "part"),
    "response.reasoning_summary_part.added": ("summary_index", "part"),
}
END_EVENTS = ("response.completed", "response.incomplete", "response.failed")
SEARCH = ("in_progress", "searching", "completed")


class EventOrder:
    """Takes all events of a stream, and fails on the first that may not come now."""

    def __init__(self) -> None:
        self._number = 0
        self._items: list[Any] = []
        """As they were added; None where one is done."""
        self._done: list[Any] = []
        self._parts: dict[tuple[int, int], str] = {}
        self._arguments: dict[int, str] = {}
        self._searches: dict[int, int] = {}
        self._annotations: dict[int, list[Any]] = {}
        self._id: str | None = None
        self._ended = False

    def check(self, event: Any) -> None:
        kind = event["type"]
        assert not self._ended, f"{kind} after the end"
        assert event["sequence_number"] == self._number, kind
        if self._number < 2:
            assert kind == ("response.created", "response.in_progress")[self._number]
            assert event["response"]["output"] == []
        self._number += 1
        if "response" in event:
            self._id = self._id or event["response"]["id"]
            assert event["response"]["id"] == self._id
        if kind in END_EVENTS:
            self._end(kind, event["response"])
        elif kind == "response.output_item.added":
            self._add(event)
        elif kind == "response.output_item.done":
            self._finish(event)
        elif kind not in ("response.created", "response.in_progress"):
            self._grow(kind.removeprefix("response."), event)

    def check_end(self) -> None:
        assert self._ended, "the stream has no end"

    def _add(self, event: Any) -> None:
        assert event["output_index"] == len(self._items), "places have no gaps"
        assert event["item"]["status"] == "in_progress"
        self._items.append(event["item"])
        self._done.append(None)

    def _finish(self, event: Any) -> None:
        place, item = event["output_index"], event["item"]
        begun = self._items[place]
        assert begun is not None and (begun["id"], begun["type"]) == (item["id"], item["type"])
        assert not any(at == place for at, _ in self._parts), "a part is still open"
        if item["type"] == "function_call":
            assert item["arguments"] == self._arguments.pop(place)
        if item["type"] == "message":
            (part,) = item["content"]
            assert part["annotations"] == self._annotations.get(place, [])
        if item["type"] == "web_search_call":
            assert (item["status"], self._searches[place]) in (("completed", 3), ("failed", 2))
        self._items[place], self._done[place] = None, item

    def _grow(self, kind: str, event: Any) -> None:
        place = event["output_index"]
        item = self._items[place]
        assert item is not None and item["id"] == event["item_id"], kind
        index = event.get("content_index", event.get("summary_index", 0))
        name, _, what = kind.rpartition(".")
        if name == "web_search_call":
            step = self._searches.get(place, 0)
            assert what == SEARCH[step], "searches go on in their order"
            self._searches[place] = step + 1
        elif name.endswith("_part"):
            if what == "added":
                assert (place, index) not in self._parts
                self._parts[place, index] = ""
            else:
                assert event["part"]["text"] == self._parts.pop((place, index))
        elif name == "function_call_arguments":
            if what == "delta":
                self._arguments[place] = self._arguments.get(place, "") + event["delta"]
            else:
                self._arguments.setdefault(place, event["arguments"])
                assert event["arguments"] == self._arguments[place]
        elif name == "output_text.annotation":
            known = self._annotations.setdefault(place, [])
            assert event["annotation_index"] == len(known)
            known.append(event["annotation"])
        elif what == "delta":
            self._parts[place, index] += event["delta"]
        else:
            assert (name, what) in (("output_text", "done"), ("reasoning_summary_text", "done"))
            assert event["text"] == self._parts[place, index]

    def _end(self, kind: str, response: Any) -> None:
        self._ended = True
        assert kind == f"response.{response['status']}"
        if kind == "response.failed":
            assert response["error"]["code"] and response["error"]["message"]
            return
        assert response["output"] == self._done, "all items are there, as they were told"
