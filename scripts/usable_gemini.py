"""Print the path of the gemini CLI if one is installed and signed in; exit 1 if not."""

import os
import sys

from gemini_cli_mcp.errors import GeminiMcpError
from gemini_cli_mcp.providers.gemini.binary import find_gemini
from gemini_cli_mcp.providers.gemini.home import is_signed_in
from gemini_cli_mcp.settings.env import Config

try:
    binary = find_gemini(Config.from_env(os.environ).cli_path, os.environ)
except GeminiMcpError:
    sys.exit(1)
if binary.official and is_signed_in(os.environ):
    print(binary.path)
else:
    sys.exit(1)
