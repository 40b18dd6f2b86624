"""Detect whether a user's text requests a web search: rules as data, and two match modes.

`substring` matches every rule literally, so "research the report" is a hit. `word` matches whole
English words and ignores code: fences, backticks, calls(), paths and URLs.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gemini_cli_mcp.json_values import list_or_empty, object_or_empty
from gemini_cli_mcp.settings.upstreams import MatchMode


@dataclass(frozen=True)
class Intent:
    """What a text requests."""

    search: bool
    google: bool = False
    """Whether Google is the preferred engine."""


@dataclass(frozen=True)
class Rules:
    """The trigger words of one language."""

    phrases: tuple[str, ...]
    """Each is a hit on its own."""
    google_phrases: tuple[str, ...]
    """Each is a hit on its own and prefers Google."""
    verbs: tuple[str, ...]
    nouns: tuple[str, ...]
    """A verb together with a noun, anywhere in the text, is a hit."""


CHINESE = Rules(
    phrases=("上网",),
    google_phrases=("谷歌搜索", "谷歌一下", "百度一下"),
    verbs=("搜索", "查找", "搜"),
    nouns=("网络", "联网", "新闻", "信息", "报道"),
)
GOOGLE = "google"
ENGLISH = Rules(
    phrases=(
        "/search",
        "web search",
        "websearch",
        "internet search",
        "search the web",
        "web-search",
        "internet-search",
    ),
    google_phrases=(),
    verbs=("search", "find", "look up", "look for", GOOGLE),
    nouns=(
        "web",
        "internet",
        "online",
        "news",
        "information",
        "info",
        "report",
        "reports",
        "article",
        "articles",
    ),
)

# No pattern can start again inside an earlier attempt, so matching takes linear time.
_CODE_SPAN = re.compile(r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)|`[^`\n]*`", re.DOTALL)
_FUNCTION_CALL = re.compile(r"(?<![\w.])[\w.]++\((?!s\))[^()\n]*+\)", re.ASCII)  # not report(s)
_TOKEN = re.compile(r"(?<![!-~])[!-~]++")
_PATH = re.compile(r"[\w.@~/-]+", re.ASCII)
_EXTENSION = re.compile(r".\.\w+\Z", re.ASCII)


def _strip_code(text: str) -> str:
    """Remove fences, backticks, calls(), paths and URLs."""
    text = _FUNCTION_CALL.sub(" ", _CODE_SPAN.sub(" ", text))
    return _TOKEN.sub(lambda token: " " if _is_url_or_path(token[0]) else token[0], text)


def _is_url_or_path(token: str) -> bool:
    word = token.lstrip("([{<\"'").rstrip(")]}>\"',;:!?.")
    if "://" in word or word.startswith("www.") or re.match(r"[A-Za-z]:\\", word):
        return True
    first, *rest = word.split("/")
    if not rest or not _PATH.fullmatch(word):
        return False
    if len(rest) > 1 or first in ("~", ".", ".."):  # one/two/three, ./one
        return True
    return bool(first and _EXTENSION.search(rest[0]))  # one/two.py


def detect_intent(text: str, mode: MatchMode = "substring") -> Intent:
    text = (_strip_code(text) if mode == "word" else text).lower()
    chinese = _matches_rules(text, CHINESE, "substring")
    english = _matches_rules(text, ENGLISH, mode)
    verbs = [verb for verb in ENGLISH.verbs if _matches(verb, text, mode)]
    google = GOOGLE in verbs and (chinese or english or len(verbs) > 1)
    has_google_phrase = any(phrase in text for phrase in CHINESE.google_phrases)
    return Intent(chinese or english or google, google or has_google_phrase)


def latest_user_text(messages: Sequence[object]) -> str:
    """Return the text of the latest user message, ignoring all other roles."""
    for message in map(object_or_empty, reversed(messages)):
        if message.get("role") == "user":
            return _content_text(message.get("content"))
    return ""


def _content_text(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = [object_or_empty(part) for part in list_or_empty(content)]
    return "\n".join(str(part["text"]) for part in parts if isinstance(part.get("text"), str))


def _matches_rules(text: str, rules: Rules, mode: MatchMode) -> bool:
    def any_matches(words: tuple[str, ...]) -> bool:
        return any(_matches(word, text, mode) for word in words)

    return (
        any_matches(rules.phrases)
        or any_matches(rules.google_phrases)
        or (any_matches(rules.verbs) and any_matches(rules.nouns))
    )


def _matches(rule: str, text: str, mode: MatchMode) -> bool:
    if mode == "substring":
        return rule in text
    # Only ASCII counts as part of a word: in mixed text, Chinese characters follow without a space.
    pattern = re.escape(rule).replace(r"\ ", r"\s+")
    return re.search(rf"(?<![a-z0-9_]){pattern}(?![a-z0-9_])", text) is not None
