"""Run the program in a separate process with different limits.

python -m tests.support.launcher '{"keep_alive_interval": 1.0}' gateway --port 0
"""

import json
import sys

from gemini_cli_mcp.__main__ import main
from gemini_cli_mcp.limits import Limits

if __name__ == "__main__":
    sys.exit(main(sys.argv[2:], Limits(**json.loads(sys.argv[1]))))
