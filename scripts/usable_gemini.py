"""Print the path of the gemini CLI if one is installed and signed in; exit 1 if not."""

import os
import sys

from gemini_cli_mcp.config import Config
from gemini_cli_mcp.errors import GeminiMcpError
from gemini_cli_mcp.providers import gemini_binary, gemini_home

try:
    binary = gemini_binary.find(Config.from_env(os.environ).cli_path, os.environ)
except GeminiMcpError:
    sys.exit(1)
if binary.official and gemini_home.is_signed_in(os.environ):
    print(binary.path)
else:
    sys.exit(1)
