"""The input of a correction, and how much of its result that input supports."""

import pytest

from gemini_cli_mcp.errors import ExecutionFailed
from gemini_cli_mcp.research.json_correction import (
    LINE_BREAK,
    MAX_LINE_CHARS,
    MAX_LINES,
    word_overlap,
    wrap_for_cli,
)


def test_short_lines_are_kept_with_normalized_line_endings() -> None:
    assert wrap_for_cli("one\n\ntwo\r\nthree") == "one\n\ntwo\nthree"


def test_long_lines_are_split_without_loss() -> None:
    text = "".join(chr(0x4E00 + n % 5000) for n in range(60_000))

    lines = wrap_for_cli(text).split("\n")

    assert "".join(lines) == text
    assert max(len(line.encode("utf-16-le")) // 2 for line in lines) < 2000


def test_many_lines_are_joined_without_loss() -> None:
    text = "\n".join(f"line {n}" for n in range(5_000))

    packed = wrap_for_cli(text)

    assert packed.replace(LINE_BREAK, "\n") == text
    assert len(packed.split("\n")) <= MAX_LINES


def test_text_longer_than_the_cli_reads_is_rejected() -> None:
    with pytest.raises(ExecutionFailed, match="too long"):
        wrap_for_cli("x" * (MAX_LINE_CHARS * MAX_LINES + 1))


@pytest.mark.parametrize(
    ("report", "invalid", "share"),
    [
        ("The sky is blue.", '{"report": "The sky is blue.', 1.0),
        ("The sky is blue.", "The\\nsky\\tis blue", 1.0),
        ("天空是蓝色的", '"\\u5929\\u7a7a\\u662f\\u84dd\\u8272\\u7684', 1.0),
        ("天空是红色的", "天空是蓝色的", 5 / 6),
        ("One two three four", "one TWO", 0.5),
        ("", "anything", 1.0),
    ],
)
def test_the_overlap_is_the_share_of_words_from_the_invalid_output(
    report: str, invalid: str, share: float
) -> None:
    assert word_overlap(report, invalid) == pytest.approx(share)
