"""A state machine that accepts the events of one response only in a valid order."""

from typing import Any

END_EVENTS = ("response.completed", "response.incomplete", "response.failed")
SEARCH_PHASES = ("in_progress", "searching", "completed")


class EventOrder:
    """Checks all events of a stream, and fails on the first that is out of order."""

    def __init__(self) -> None:
        self._sequence_number = 0
        self._open_items: list[Any] = []
        """Items as they were added; None once an item is done."""
        self._done_items: list[Any] = []
        self._parts: dict[tuple[int, int], str] = {}
        self._arguments: dict[int, str] = {}
        self._search_steps: dict[int, int] = {}
        self._annotations: dict[int, list[Any]] = {}
        self._response_id: str | None = None
        self._ended = False

    def check(self, event: Any) -> None:
        kind = event["type"]
        assert not self._ended, f"{kind} after the final event"
        assert event["sequence_number"] == self._sequence_number, kind
        if self._sequence_number < 2:
            assert kind == ("response.created", "response.in_progress")[self._sequence_number]
            assert event["response"]["output"] == []
        self._sequence_number += 1
        if "response" in event:
            self._response_id = self._response_id or event["response"]["id"]
            assert event["response"]["id"] == self._response_id
        if kind in END_EVENTS:
            self._end(kind, event["response"])
        elif kind == "response.output_item.added":
            self._add_item(event)
        elif kind == "response.output_item.done":
            self._finish_item(event)
        elif kind not in ("response.created", "response.in_progress"):
            self._update(kind.removeprefix("response."), event)

    def check_end(self) -> None:
        assert self._ended, "the stream has no final event"

    def _add_item(self, event: Any) -> None:
        assert event["output_index"] == len(self._open_items), "a gap in the output indexes"
        assert event["item"]["status"] == "in_progress"
        self._open_items.append(event["item"])
        self._done_items.append(None)

    def _finish_item(self, event: Any) -> None:
        output_index, item = event["output_index"], event["item"]
        added = self._open_items[output_index]
        assert added is not None and (added["id"], added["type"]) == (item["id"], item["type"])
        assert not any(index == output_index for index, _ in self._parts), "a part is still open"
        if item["type"] == "function_call":
            assert item["arguments"] == self._arguments.pop(output_index)
        if item["type"] == "message":
            (part,) = item["content"]
            assert part["annotations"] == self._annotations.get(output_index, [])
        if item["type"] == "web_search_call":
            assert (item["status"], self._search_steps[output_index]) in (
                ("completed", 3),
                ("failed", 2),
            )
        self._open_items[output_index], self._done_items[output_index] = None, item

    def _update(self, kind: str, event: Any) -> None:
        output_index = event["output_index"]
        item = self._open_items[output_index]
        assert item is not None and item["id"] == event["item_id"], kind
        index = event.get("content_index", event.get("summary_index", 0))
        name, _, phase = kind.rpartition(".")
        if name == "web_search_call":
            step = self._search_steps.get(output_index, 0)
            assert phase == SEARCH_PHASES[step], "search events out of order"
            self._search_steps[output_index] = step + 1
        elif name.endswith("_part"):
            if phase == "added":
                assert (output_index, index) not in self._parts
                self._parts[output_index, index] = ""
            else:
                assert event["part"]["text"] == self._parts.pop((output_index, index))
        elif name == "function_call_arguments":
            if phase == "delta":
                self._arguments[output_index] = (
                    self._arguments.get(output_index, "") + event["delta"]
                )
            else:
                self._arguments.setdefault(output_index, event["arguments"])
                assert event["arguments"] == self._arguments[output_index]
        elif name == "output_text.annotation":
            annotations = self._annotations.setdefault(output_index, [])
            assert event["annotation_index"] == len(annotations)
            annotations.append(event["annotation"])
        elif phase == "delta":
            self._parts[output_index, index] += event["delta"]
        else:
            assert (name, phase) in (("output_text", "done"), ("reasoning_summary_text", "done"))
            assert event["text"] == self._parts[output_index, index]

    def _end(self, kind: str, response: Any) -> None:
        self._ended = True
        assert kind == f"response.{response['status']}"
        if kind == "response.failed":
            assert response["error"]["code"] and response["error"]["message"]
            return
        assert response["output"] == self._done_items, (
            "the response does not contain the items as they were sent"
        )
