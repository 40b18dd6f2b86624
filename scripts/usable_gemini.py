"""Print the path of the gemini CLI if one is installed and signed in; exit 1 if not."""

import os
import sys

from gemini_cli_mcp.errors import GeminiMcpError
from gemini_cli_mcp.providers.gemini.binary import find_gemini
from gemini_cli_mcp.providers.gemini.sign_ins import is_signed_in
from gemini_cli_mcp.settings.env import Settings

try:
    binary = find_gemini(Settings.from_env(os.environ).cli_path, os.environ)
except GeminiMcpError:
    sys.exit(1)
if binary.is_official and is_signed_in(os.environ):
    print(binary.path)
else:
    sys.exit(1)
