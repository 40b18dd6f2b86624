"""The route to the API is the one that the CLI takes."""

import pytest

from gemini_cli_mcp.providers.gemini.api_route import (
    find_python_route,
    find_route,
    is_valid_proxy,
    proxy_variable,
    without_password,
)

PROXY = "http://proxy.example:8080"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, "generativelanguage.googleapis.com"),
        (
            {"GOOGLE_GEMINI_BASE_URL": "http://u:p@gate.example/x/"},
            "http://gate.example/x (GOOGLE_GEMINI_BASE_URL)",
        ),
        (
            {"HTTP_PROXY": "http://u:p@ss@proxy.example:1", "ALL_PROXY": "http://other.example"},
            "generativelanguage.googleapis.com via the proxy http://proxy.example:1 (HTTP_PROXY)",
        ),
        ({"ALL_PROXY": PROXY}, "generativelanguage.googleapis.com"),
        (
            {"GOOGLE_GEMINI_BASE_URL": "http://gate.example", "https_proxy": PROXY},
            f"http://gate.example (GOOGLE_GEMINI_BASE_URL) via the proxy {PROXY} (https_proxy)",
        ),
    ],
)
def test_base_url_and_proxy_are_described_without_passwords(
    environ: dict[str, str], expected: str
) -> None:
    assert str(find_route(environ)) == expected


@pytest.mark.parametrize(
    ("rules", "is_bypassed"),
    [
        ("*", True),
        ("generativelanguage.googleapis.com", True),
        ("GENERATIVELANGUAGE.googleapis.com:443", True),
        ("generativelanguage.googleapis.com:80", False),
        (".googleapis.com", True),
        ("*.googleapis.com localhost", True),
        ("googleapis.com", False),
        ("localhost,127.0.0.1", False),
        ("", False),
    ],
)
def test_no_proxy_has_the_rules_of_the_cli(rules: str, is_bypassed: bool) -> None:
    route = find_route({"HTTPS_PROXY": PROXY, "NO_PROXY": rules, "no_proxy": "*"})

    assert (route.proxy is None) is is_bypassed


@pytest.mark.parametrize(
    ("environ", "url"),
    [
        ({"GOOGLE_CLOUD_LOCATION": "us-central1"}, "https://us-central1-aiplatform.googleapis.com"),
        ({"GOOGLE_CLOUD_LOCATION": "global"}, "https://aiplatform.googleapis.com"),
        (
            {"GOOGLE_API_KEY": "k", "GOOGLE_CLOUD_LOCATION": "us-central1"},
            "https://aiplatform.googleapis.com",
        ),
        ({"GOOGLE_VERTEX_BASE_URL": "https://v.example"}, "https://v.example"),
    ],
)
def test_vertex_ai_has_its_own_servers(environ: dict[str, str], url: str) -> None:
    assert find_route(environ, "vertex-ai").url == url


@pytest.mark.parametrize(
    ("environ", "variable"),
    [
        ({"ALL_PROXY": PROXY}, "ALL_PROXY"),
        ({"HTTP_PROXY": PROXY, "ALL_PROXY": PROXY}, "ALL_PROXY"),
        ({"HTTPS_PROXY": PROXY, "https_proxy": PROXY}, "https_proxy"),
        ({"HTTPS_PROXY": PROXY, "NO_PROXY": "googleapis.com"}, None),
        ({"HTTPS_PROXY": PROXY, "NO_PROXY": "gleapis.com"}, "HTTPS_PROXY"),
        ({"HTTPS_PROXY": PROXY, "GOOGLE_GEMINI_BASE_URL": "http://gate.example"}, None),
        ({"ALL_PROXY": PROXY, "GOOGLE_GEMINI_BASE_URL": "http://[x"}, "ALL_PROXY"),
    ],
)
def test_google_genai_has_the_proxies_of_python(
    environ: dict[str, str], variable: str | None
) -> None:
    assert find_python_route(environ).proxy_variable == variable


def test_the_cli_prefers_https_proxy() -> None:
    environ = {"http_proxy": "a", "HTTP_PROXY": "b", "https_proxy": "c", "HTTPS_PROXY": "d"}

    assert proxy_variable(environ) == "HTTPS_PROXY"
    assert proxy_variable({**environ, "HTTPS_PROXY": ""}) == "https_proxy"


@pytest.mark.parametrize(
    ("proxy", "is_valid"),
    [
        (PROXY, True),
        (" https://u:p@proxy.example ", True),
        ("socks5://127.0.0.1:9", False),
        ("u:p@127.0.0.1:9", False),
        ("http://127.0.0.1:port", False),
        ("http://proxy.example/", True),
        ("http://proxy.example/path", False),
        ("http://proxy.example?x", False),
        ("http://", False),
        ("http://[::1", False),
    ],
)
def test_a_proxy_must_be_an_http_url(proxy: str, is_valid: bool) -> None:
    assert is_valid_proxy(proxy) is is_valid


def test_a_password_is_removed_whatever_it_contains() -> None:
    assert without_password("http://me:p@ss/w:rd@host:1/x") == "http://host:1/x"
    assert without_password("http://host:1/x") == "http://host:1/x"
