"""Search intent in user messages, in both matching modes."""

import pytest

from gemini_cli_mcp.gateway.search_intent import Intent, detect_intent, latest_user_text

NO_SEARCH, SEARCH, GOOGLE = Intent(False), Intent(True), Intent(True, google=True)

SAME_IN_BOTH_MODES: list[tuple[str, Intent]] = [
    # Chinese
    ("谷歌搜索一下今天的天气", GOOGLE),
    ("帮我谷歌一下这个词", GOOGLE),
    ("百度一下北京大学", GOOGLE),
    ("上网看看有什么新电影", SEARCH),
    ("你能上网吗?", SEARCH),
    ("搜索最新的新闻", SEARCH),
    ("请搜一下关于地震的报道", SEARCH),
    ("查找网络上的资料", SEARCH),
    ("联网搜索", SEARCH),
    ("帮我查找相关信息", SEARCH),
    ("今天的新闻是什么", NO_SEARCH),
    ("搜索这个文件夹", NO_SEARCH),
    ("请解释这段代码", NO_SEARCH),
    ("写一首关于网络的诗", NO_SEARCH),
    ("这个函数返回什么信息?", NO_SEARCH),
    ("用 Python 实现二分查找", NO_SEARCH),
    ("谷歌是一家什么公司?", NO_SEARCH),
    ("搜狗输入法怎么安装", NO_SEARCH),
    ("把新闻翻译成英文", NO_SEARCH),
    ("搜新闻", SEARCH),
    # English phrases that suffice on their own
    ("/search current Python version", SEARCH),
    ("Do a web search for this", SEARCH),
    ("use websearch please", SEARCH),
    ("an internet search would help", SEARCH),
    ("Search the web for cheap flights", SEARCH),
    ("try web-search", SEARCH),
    ("try internet-search", SEARCH),
    ("SEARCH THE WEB!", SEARCH),
    # A verb with a noun
    ("Find news about the election", SEARCH),
    ("look up the article on black holes", SEARCH),
    ("Can you look for information on tides?", SEARCH),
    ("Please find me some reports on inflation", SEARCH),
    ("search online for reviews", SEARCH),
    ("find more info about her", SEARCH),
    ("Could you look for articles by Arendt?", SEARCH),
    ("search, if you can, the internet", SEARCH),
    # Google
    ("Google the latest news", GOOGLE),
    ("google it and find the answer", GOOGLE),
    ("search Google for that", GOOGLE),
    ("Find it on Google", GOOGLE),
    ("look up the error with google", GOOGLE),
    ("google some information on bees", GOOGLE),
    ("web search with google", GOOGLE),
    ("What is Google?", NO_SEARCH),
    ("Who founded Google and when?", NO_SEARCH),
    ("Explain the Google style guide", NO_SEARCH),
    # Everyday requests
    ("Write a poem about the sea", NO_SEARCH),
    ("What is 2 + 2?", NO_SEARCH),
    ("Refactor this class, please", NO_SEARCH),
    ("What's new?", NO_SEARCH),
    ("The news is bad today", NO_SEARCH),
    ("Fix the login bug", NO_SEARCH),
    ("Translate this article into German", NO_SEARCH),
    ("Summarise the report above", NO_SEARCH),
    ("How do I sort a list?", NO_SEARCH),
    ("Look at the web server's logs", NO_SEARCH),
    ("", NO_SEARCH),
]
INTENT_BY_MODE: list[tuple[str, Intent, Intent]] = [
    # Keywords inside other words
    ("Do some research on the report generator", SEARCH, NO_SEARCH),
    ("The researchers published an article", SEARCH, NO_SEARCH),
    ("Refinding the inform module", SEARCH, NO_SEARCH),
    ("Add a binary search to the webpack plugin", SEARCH, NO_SEARCH),
    ("findings of the newsroom", SEARCH, NO_SEARCH),
    ("Is the searchable field in the reporting module?", SEARCH, NO_SEARCH),
    # Code
    ("Why does `find` print no news?", SEARCH, NO_SEARCH),
    ("Call find() on the report list", SEARCH, NO_SEARCH),
    ("arr.find(x => x.id) returns no information", SEARCH, NO_SEARCH),
    ("Open src/search/index.ts and fix the web part", SEARCH, NO_SEARCH),
    ("See https://example.com/search?q=news", SEARCH, NO_SEARCH),
    ("Rename /api/search to /api/lookup", SEARCH, NO_SEARCH),
    ("```python\nsearch the web\n```\nWhat does this do?", SEARCH, NO_SEARCH),
    ("Why is ./find slow on reports?", SEARCH, NO_SEARCH),
    ("The page www.search.org is online", SEARCH, NO_SEARCH),
    ("```\nfind . -name web", SEARCH, NO_SEARCH),
    # Prose that only looks like code
    ("find the report(s) of 2025", SEARCH, SEARCH),
    ("search web/internet for this", SEARCH, SEARCH),
    ("find an article in src/a.py", SEARCH, SEARCH),
    ("please look  up\nthe news", NO_SEARCH, SEARCH),
    ("用google搜索新闻", GOOGLE, GOOGLE),
]


@pytest.mark.parametrize(("text", "expected"), SAME_IN_BOTH_MODES)
@pytest.mark.parametrize("mode", ["substring", "word"])
def test_both_modes_detect_the_same_intent(text: str, expected: Intent, mode: str) -> None:
    assert detect_intent(text, "word" if mode == "word" else "substring") == expected


@pytest.mark.parametrize(("text", "substring_intent", "word_intent"), INTENT_BY_MODE)
def test_word_mode_ignores_parts_of_words_and_code(
    text: str, substring_intent: Intent, word_intent: Intent
) -> None:
    assert (detect_intent(text), detect_intent(text, "word")) == (substring_intent, word_intent)


def test_only_the_latest_user_message_counts() -> None:
    messages = [
        {"role": "system", "content": "search the web"},
        {"role": "user", "content": "search the web"},
        {"role": "assistant", "content": "web search"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Hello"},
                {"type": "image_url", "image_url": {"url": "https://a/web-search"}},
                {"type": "text", "text": "there"},
            ],
        },
        {"role": "tool", "content": "find news"},
    ]

    assert latest_user_text(messages) == "Hello\nthere"
    assert latest_user_text([]) == ""
    assert latest_user_text(["odd", {"role": "user", "content": None}]) == ""


@pytest.mark.parametrize(
    "unit",
    [
        *("`", "```", "~~~", "(", "a(", "搜(", "/a", "a/", "a b/", "a-", "a.", "x://"),
        "search ",
    ],
)
@pytest.mark.timeout(1.5)  # it takes 0.1 s; backtracking would take hours
def test_hostile_text_is_matched_quickly(unit: str) -> None:
    assert not detect_intent(unit * 50_000, "word").search


@pytest.mark.parametrize(
    "text",
    [
        "请搜索今天的新闻(北京)",
        "上网查一下(最新)",
        "谷歌一下(奥斯陆)",
        "搜索新闻/报道/信息",
        "请看 https://x.com/a，然后上网搜索新闻",
    ],
)
def test_chinese_next_to_brackets_and_urls_is_not_code(text: str) -> None:
    assert detect_intent(text, "word").search
