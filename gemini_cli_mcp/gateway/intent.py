"""Whether a user's words ask for a web search: rules as data, and two ways to match them.

`substring` takes every rule literally, so "research the report" is a hit. `word` wants whole
English words and looks away from code: fences, backticks, calls(), paths and addresses.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gemini_cli_mcp.models import Object, as_list, as_object
from gemini_cli_mcp.upstreams import MatchMode


@dataclass(frozen=True)
class Intent:
    """What the words ask for."""

    search: bool
    google: bool = False
    """Whether Google is to do it."""


@dataclass(frozen=True)
class Rules:
    """The words of one language."""

    alone: tuple[str, ...]
    """Each is a hit by itself."""
    alone_google: tuple[str, ...]
    """Each is a hit by itself, and means Google."""
    verbs: tuple[str, ...]
    nouns: tuple[str, ...]
    """A verb with a noun, wherever they stand, is a hit."""


CHINESE = Rules(
    alone=("上网",),
    alone_google=("谷歌搜索", "谷歌一下", "百度一下"),
    verbs=("搜索", "查找", "搜"),
    nouns=("网络", "联网", "新闻", "信息", "报道"),
)
GOOGLE = "google"
ENGLISH = Rules(
    alone=(
        "/search",
        "web search",
        "websearch",
        "internet search",
        "search the web",
        "web-search",
        "internet-search",
    ),
    alone_google=(),
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

_CODE = re.compile(
    r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)"  # fences, also one that is not closed
    r"|`[^`\n]*`"
    r"|\b(?:https?|ftp)://\S+|\bwww\.\S+"
    r"|(?<!\S)(?:~|\.{1,2})?/[\w.@-]+/[\w./@-]*"  # /one/two, ./one/two
    r"|(?<!\S)(?:~|\.{1,2})/[\w.@-]+"  # ./one
    r"|\b[\w@-]+(?:/[\w.@-]+)*/[\w@-]+\.\w+"  # one/two.py
    r"|\b[\w@-]+(?:/[\w.@-]+){2,}"  # one/two/three
    r"|\b[A-Za-z]:\\\S+"
    r"|\b[\w.]+\((?!s\))[^()\n]*\)",  # call(x), but not report(s)
    re.DOTALL,
)


def intent(text: str, mode: MatchMode = "substring") -> Intent:
    """What this text asks for."""
    text = (_CODE.sub(" ", text) if mode == "word" else text).lower()
    chinese = _asked(text, CHINESE, "substring")
    english = _asked(text, ENGLISH, mode)
    verbs = [verb for verb in ENGLISH.verbs if _stands(verb, text, mode)]
    google = GOOGLE in verbs and (chinese or english or len(verbs) > 1)
    preferred = any(phrase in text for phrase in CHINESE.alone_google)
    return Intent(chinese or english or google, google or preferred)


def latest_user_text(messages: Sequence[object]) -> str:
    """The text of the latest message of the user, and of nobody else."""
    for message in reversed([as_object(message) for message in messages]):
        if message.get("role") == "user":
            return _text(message)
    return ""


def _text(message: Object) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = [as_object(part) for part in as_list(content)]
    return "\n".join(str(part["text"]) for part in parts if isinstance(part.get("text"), str))


def _asked(text: str, rules: Rules, mode: MatchMode) -> bool:
    def stand(words: tuple[str, ...]) -> bool:
        return any(_stands(word, text, mode) for word in words)

    return (
        stand(rules.alone)
        or stand(rules.alone_google)
        or (stand(rules.verbs) and stand(rules.nouns))
    )


def _stands(rule: str, text: str, mode: MatchMode) -> bool:
    if mode == "substring":
        return rule in text
    # ASCII letters bound a word: in mixed text a Chinese one stands right beside it.
    pattern = re.escape(rule).replace(r"\ ", r"\s+")
    return re.search(rf"(?<![a-z0-9_]){pattern}(?![a-z0-9_])", text) is not None
