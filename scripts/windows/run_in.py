"""run_in.py FOLDER PROGRAM [ARGUMENT...]: run a program there, with pipes that Windows made.

Node on Wine cannot use the pipes of Unix programs.
"""

import subprocess
import sys

if __name__ == "__main__":
    with subprocess.Popen(
        sys.argv[2:],
        cwd=sys.argv[1],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdout
        for line in process.stdout:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
    sys.exit(process.returncode)
