"""What users' sentences ask for, in both ways to match them."""

import pytest

from gemini_cli_mcp.gateway.intent import Intent, detect_intent, latest_user_text

NO, HIT, GOOGLE = Intent(False), Intent(True), Intent(True, google=True)

SAME: list[tuple[str, Intent]] = [
    # Chinese
    ("谷歌搜索一下今天的天气", GOOGLE),
    ("帮我谷歌一下这个词", GOOGLE),
    ("百度一下北京大学", GOOGLE),
    ("上网看看有什么新电影", HIT),
    ("你能上网吗?", HIT),
    ("搜索最新的新闻", HIT),
    ("请搜一下关于地震的报道", HIT),
    ("查找网络上的资料", HIT),
    ("联网搜索", HIT),
    ("帮我查找相关信息", HIT),
    ("今天的新闻是什么", NO),
    ("搜索这个文件夹", NO),
    ("请解释这段代码", NO),
    ("写一首关于网络的诗", NO),
    ("这个函数返回什么信息?", NO),
    ("用 Python 实现二分查找", NO),
    ("谷歌是一家什么公司?", NO),
    ("搜狗输入法怎么安装", NO),
    ("把新闻翻译成英文", NO),
    ("搜新闻", HIT),
    # English, asked for by itself
    ("/search current Python version", HIT),
    ("Do a web search for this", HIT),
    ("use websearch please", HIT),
    ("an internet search would help", HIT),
    ("Search the web for cheap flights", HIT),
    ("try web-search", HIT),
    ("try internet-search", HIT),
    ("SEARCH THE WEB!", HIT),
    # A verb with a noun
    ("Find news about the election", HIT),
    ("look up the article on black holes", HIT),
    ("Can you look for information on tides?", HIT),
    ("Please find me some reports on inflation", HIT),
    ("search online for reviews", HIT),
    ("find more info about her", HIT),
    ("Could you look for articles by Arendt?", HIT),
    ("search, if you can, the internet", HIT),
    # Google
    ("Google the latest news", GOOGLE),
    ("google it and find the answer", GOOGLE),
    ("search Google for that", GOOGLE),
    ("Find it on Google", GOOGLE),
    ("look up the error with google", GOOGLE),
    ("google some information on bees", GOOGLE),
    ("web search with google", GOOGLE),
    ("What is Google?", NO),
    ("Who founded Google and when?", NO),
    ("Explain the Google style guide", NO),
    # Everyday
    ("Write a poem about the sea", NO),
    ("What is 2 + 2?", NO),
    ("Refactor this class, please", NO),
    ("What's new?", NO),
    ("The news is bad today", NO),
    ("Fix the login bug", NO),
    ("Translate this article into German", NO),
    ("Summarise the report above", NO),
    ("How do I sort a list?", NO),
    ("Look at the web server's logs", NO),
    ("", NO),
]
DIFFERENT: list[tuple[str, Intent, Intent]] = [
    # Words inside of words
    ("Do some research on the report generator", HIT, NO),
    ("The researchers published an article", HIT, NO),
    ("Refinding the inform module", HIT, NO),
    ("Add a binary search to the webpack plugin", HIT, NO),
    ("findings of the newsroom", HIT, NO),
    ("Is the searchable field in the reporting module?", HIT, NO),
    # Code
    ("Why does `find` print no news?", HIT, NO),
    ("Call find() on the report list", HIT, NO),
    ("arr.find(x => x.id) returns no information", HIT, NO),
    ("Open src/search/index.ts and fix the web part", HIT, NO),
    ("See https://example.com/search?q=news", HIT, NO),
    ("Rename /api/search to /api/lookup", HIT, NO),
    ("```python\nsearch the web\n```\nWhat does this do?", HIT, NO),
    ("Why is ./find slow on reports?", HIT, NO),
    ("The page www.search.org is online", HIT, NO),
    ("```\nfind . -name web", HIT, NO),
    # Prose that only looks like code
    ("find the report(s) of 2025", HIT, HIT),
    ("search web/internet for this", HIT, HIT),
    ("find an article in src/a.py", HIT, HIT),
    ("please look  up\nthe news", NO, HIT),
    ("用google搜索新闻", GOOGLE, GOOGLE),
]


@pytest.mark.parametrize(("text", "expected"), SAME)
@pytest.mark.parametrize("mode", ["substring", "word"])
def test_both_ways_agree(text: str, expected: Intent, mode: str) -> None:
    assert detect_intent(text, "word" if mode == "word" else "substring") == expected


@pytest.mark.parametrize(("text", "literally", "by_words"), DIFFERENT)
def test_whole_words_and_no_code(text: str, literally: Intent, by_words: Intent) -> None:
    assert (detect_intent(text), detect_intent(text, "word")) == (literally, by_words)


def test_only_the_latest_words_of_the_user_count() -> None:
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
@pytest.mark.timeout(1.5)  # a tenth of a second; what backtracks would take hours
def test_hostile_text_takes_no_time(unit: str) -> None:
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
def test_chinese_beside_brackets_and_addresses_is_no_code(text: str) -> None:
    assert detect_intent(text, "word").search
