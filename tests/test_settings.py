"""Settings from environment variables, validated at startup."""

import re
from pathlib import Path

import pytest

from gemini_cli_mcp.errors import ConfigError
from gemini_cli_mcp.settings.env import Settings
from gemini_cli_mcp.settings.variable_names import find_misspelt
from tests.support import ROOT
from tests.support.matrix import needs_posix


def test_the_defaults_apply_without_variables() -> None:
    settings = Settings.from_env({})

    assert (settings.model, settings.correction_model, settings.cli_path) == (None, None, "gemini")
    assert (settings.timeout, settings.max_cycles, settings.log_level) == (300, 3, "INFO")
    assert settings.config_dir.name == "gemini-cli-mcp"


def test_an_empty_variable_counts_as_unset() -> None:
    variables = [field.title for field in Settings.model_fields.values() if field.title]

    assert Settings.from_env(dict.fromkeys(variables, " ")) == Settings.from_env({})


def test_values_are_read_from_the_environment() -> None:
    settings = Settings.from_env(
        {
            "GEMINI_MODEL": "gemini-2.5-flash",
            "GEMINI_MCP_TIMEOUT": "1.5",
            "GEMINI_MCP_LOG_LEVEL": "debug",
            "GEMINI_MCP_CONFIG_DIR": "~/somewhere",
        }
    )

    assert (settings.model, settings.timeout, settings.log_level) == (
        "gemini-2.5-flash",
        1.5,
        "DEBUG",
    )
    assert settings.config_dir == Path.home() / "somewhere"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("GEMINI_MCP_TIMEOUT", "abc"),
        ("GEMINI_MCP_TIMEOUT", "0"),
        ("GEMINI_MCP_TIMEOUT", "-1"),
        ("GEMINI_MCP_TIMEOUT", "nan"),
        ("GEMINI_MCP_TIMEOUT", "1e999"),
        ("GEMINI_MCP_MAX_CYCLES", "0"),
        ("GEMINI_MCP_MAX_CYCLES", "1.5"),
        ("GEMINI_MCP_LOG_LEVEL", "LOUD"),
        ("GEMINI_MODEL", "--yolo"),
        ("GEMINI_MCP_CONFIG_DIR", str(ROOT / "LICENSE")),
        ("GEMINI_MCP_CONFIG_DIR", "~no-such-user/x"),
        ("GEMINI_MCP_CONFIG_DIR", "x" * 5000),
    ],
)
@needs_posix
def test_an_invalid_value_is_reported_with_the_expected_format(variable: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.from_env({variable: value})

    assert caught.value.message.startswith(f"{variable}={value!r}: ")
    assert re.search(r"should be |unknown value '\w+'; known: ", caught.value.message)


@pytest.mark.parametrize(
    ("variable", "value", "problem"),
    [
        (
            "GEMINI_MCP_PROVIDERS",
            "gemni",
            "unknown provider 'gemni'; known: gemini, antigravity, api (did you mean gemini?)",
        ),
        ("GEMINI_MCP_GROUNDED_THINKING", "x", "unknown value 'x'; known: off, low, medium, high"),
        ("GEMINI_MCP_TIMEOUT", "soon", "should be a number"),
        ("GEMINI_MCP_TIMEOUT", "0", "should be greater than 0"),
        ("GEMINI_MCP_TIMEOUT", "inf", "should be a finite number"),
        ("GEMINI_MCP_MAX_CYCLES", "2.5", "should be a whole number"),
        ("GEMINI_MCP_MAX_CYCLES", "0", "should be at least 1"),
        ("GEMINI_MCP_MAX_CYCLES", "101", "should be at most 100"),
        ("GEMINI_MCP_PROVIDERS", ",", "should have at least 1 entry"),
        ("GEMINI_MODEL", "--yolo", "should be a model name, not a flag"),
        (
            "GEMINI_MCP_UPSTREAM_URL",
            "ftp://x",
            "should be a URL that starts with http:// or https://, without ? and #",
        ),
    ],
)
def test_problems_are_described_in_our_own_words(variable: str, value: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.from_env({variable: value})

    assert caught.value.message == f"{variable}={value!r}: {problem}"


def test_all_invalid_values_are_reported_together() -> None:
    with pytest.raises(ConfigError, match=r"GEMINI_MCP_TIMEOUT.*GEMINI_MCP_MAX_CYCLES"):
        Settings.from_env({"GEMINI_MCP_TIMEOUT": "x", "GEMINI_MCP_MAX_CYCLES": "y"})


def test_misspelt_variables_are_found_and_others_are_left_alone() -> None:
    names = {
        "GEMINI_MCP_TIMEOT": "unknown variable; did you mean GEMINI_MCP_TIMEOUT?",
        "GEMINI_MPC_TIMEOUT": "unknown variable; did you mean GEMINI_MCP_TIMEOUT?",
        "GEMINI_MODLE": "unknown variable; did you mean GEMINI_MODEL?",
        "GEMINI_API_KYE": "unknown variable; did you mean GEMINI_API_KEY?",
        "DEEP_SEARCH_ITERATIONS": "unknown variable; did you mean DEEP_SEARCH_MAX_ITERATIONS?",
        "gemini_mcp_timeout": "unknown variable; did you mean GEMINI_MCP_TIMEOUT?",
        "GEMNI_API_KEY": "unknown variable; did you mean GEMINI_API_KEY?",
        "GEMNI_MCP_TIMEOUT": "unknown variable; did you mean GEMINI_MCP_TIMEOUT?",
        "DEEPSEARCH_MAX_ITERATIONS": "unknown variable; did you mean DEEP_SEARCH_MAX_ITERATIONS?",
        "GEMINI_MCP_ZZZZZZZZZZZZ": "unknown variable",
        "GEMINI_MCP_GREEN": "unknown variable",
    }
    correct = [
        *("GEMINI_MCP_TIMEOUT", "GEMINI_MCP_HTTP_TOKENS", "GEMINI_API_KEY", "GEMINI_API_KEY_2"),
        *("GEMINI_API_KEY2", "GETTEXT_DOMAIN", "GEOMETRY"),
        *("GEMINI_CLI_HOME", "GEMINI_SANDBOX", "GEMINI_SYSTEM_MD", "GEMINI_CLI_NO_RELAUNCH"),
        *("GOOGLE_GEMINI_BASE_URL", "DEEP_LEARNING_HOME", "PATH", "GEMINI_MCP_WORK_KEY"),
    ]

    assert find_misspelt([*names, *correct], key_variables={"GEMINI_MCP_WORK_KEY"}) == names
