"""The causes of AUTH_ERROR, each with its next step: in an MCP client, and in a terminal."""

from gemini_cli_mcp.errors import NotSignedIn

KEY_PAGE = "https://aistudio.google.com/apikey"
IN_CLIENT = (
    "in the `env` block of the client's configuration (Claude Desktop: Settings, Developer, Edit "
    "Config), or in ~/.gemini/.env on the server, then restart the client."
)
IN_TERMINAL = (
    "in this shell, or in ~/.gemini/.env. `gemini-cli-mcp doctor` checks whether Google accepts it."
)


class SignInMissing(NotSignedIn):
    """The CLI found no sign-in at all."""

    hint = f"Set GEMINI_API_KEY to a key from {KEY_PAGE} {IN_CLIENT}"
    terminal_hint = f"Set GEMINI_API_KEY to a key from {KEY_PAGE} {IN_TERMINAL}"


class KeyRejected(NotSignedIn):
    """Google does not know the API key, or it has expired."""

    hint = f"Replace GEMINI_API_KEY with a valid key from {KEY_PAGE} {IN_CLIENT}"
    terminal_hint = f"Replace GEMINI_API_KEY with a valid key from {KEY_PAGE} {IN_TERMINAL}"


class AccessDenied(NotSignedIn):
    """Google knows the key or login, but does not let it use the API."""

    hint = (
        "Enable the Gemini API for the project of this key or login, and check the restrictions "
        "of the key in the Google Cloud console; or set GEMINI_API_KEY to another key from "
        f"{KEY_PAGE} {IN_CLIENT}"
    )
    terminal_hint = (
        "Enable the Gemini API for the project of this key or login, and check the restrictions "
        "of the key in the Google Cloud console; or set GEMINI_API_KEY to another key from "
        f"{KEY_PAGE} {IN_TERMINAL}"
    )


class LoginRejected(NotSignedIn):
    """Google does not accept the login any more, or it has expired."""

    hint = (
        f"Set GEMINI_API_KEY to a valid key from {KEY_PAGE} {IN_CLIENT} With an enterprise login, "
        "sign in again: run `gemini-cli-mcp login gemini` in a terminal."
    )
    terminal_hint = (
        f"Set GEMINI_API_KEY to a valid key from {KEY_PAGE} {IN_TERMINAL} With an enterprise "
        "login, sign in again: `gemini-cli-mcp login gemini`."
    )


class PersonalLoginEnded(NotSignedIn):
    """Google no longer accepts personal logins from the gemini CLI."""

    hint = (
        f"Set GEMINI_API_KEY to a key from {KEY_PAGE} {IN_CLIENT} Vertex AI and enterprise Code "
        "Assist licences still work too."
    )
    terminal_hint = (
        f"Set GEMINI_API_KEY to a key from {KEY_PAGE} {IN_TERMINAL} Vertex AI and enterprise Code "
        "Assist licences still work too."
    )
