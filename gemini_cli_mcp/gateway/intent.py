"""Whether a user's words ask for a web search: rules as data, and two ways to match them.

`substring` takes every rule literally, so "research the report" is a hit. `word` wants whole
English words and looks away from code: fences, backticks, calls(), paths and addresses.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gemini_cli_mcp.json_values import JsonObject, list_or_empty, object_or_empty
from gemini_cli_mcp.settings.upstreams import MatchMode


@dataclass(frozen=True)
class Intent:
    """What the words ask for."""

    search: bool
    google: bool = False
    """Whether Google is to do it."""


@dataclass(frozen=True)
class Rules:
    """The words of one language."""

    phrases: tuple[str, ...]
    """Each is a hit by itself."""
    google_phrases: tuple[str, ...]
    """Each is a hit by itself, and means Google."""
    verbs: tuple[str, ...]
    nouns: tuple[str, ...]
    """A verb with a noun, wherever they stand, is a hit."""


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

# Each begins where it cannot have begun before: no text takes longer than its length.
_FENCED = re.compile(r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)|`[^`\n]*`", re.DOTALL)
_CALLED = re.compile(r"(?<![\w.])[\w.]++\((?!s\))[^()\n]*+\)", re.ASCII)  # but not report(s)
_TOKEN = re.compile(r"(?<![!-~])[!-~]++")
_PATH = re.compile(r"[\w.@~/-]+", re.ASCII)
_EXTENSION = re.compile(r".\.\w+\Z", re.ASCII)


def _without_code(text: str) -> str:
    """The text without what is code: fences, backticks, calls(), paths, addresses."""
    text = _CALLED.sub(" ", _FENCED.sub(" ", text))
    return _TOKEN.sub(lambda token: " " if _is_url_or_path(token[0]) else token[0], text)


def _is_url_or_path(token: str) -> bool:
    """Whether a word is an address or a path."""
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
    """What this text asks for."""
    text = (_without_code(text) if mode == "word" else text).lower()
    chinese = _matches_rules(text, CHINESE, "substring")
    english = _matches_rules(text, ENGLISH, mode)
    verbs = [verb for verb in ENGLISH.verbs if _matches(verb, text, mode)]
    google = GOOGLE in verbs and (chinese or english or len(verbs) > 1)
    preferred = any(phrase in text for phrase in CHINESE.google_phrases)
    return Intent(chinese or english or google, google or preferred)


def latest_user_text(messages: Sequence[object]) -> str:
    """The text of the latest message of the user, and of nobody else."""
    for message in reversed([object_or_empty(message) for message in messages]):
        if message.get("role") == "user":
            return _text(message)
    return ""


def _text(message: JsonObject) -> str:
    content = message.get("content")
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
    # ASCII letters bound a word: in mixed text a Chinese one stands right beside it.
    pattern = re.escape(rule).replace(r"\ ", r"\s+")
    return re.search(rf"(?<![a-z0-9_]){pattern}(?![a-z0-9_])", text) is not None
