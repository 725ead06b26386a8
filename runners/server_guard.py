"""Runs a command, and kills it when whoever started this program is gone, by whatever signal.

Run as ``python -I -S server_guard.py COMMAND…`` by :mod:`snapshard.runners.job_server`, in a
process group of its own. Its standard input comes to an end with the process that started it. It
ends with the exit code of the command, 128 + its number where that is a signal.
"""

import os
import signal
import subprocess
import sys
import threading


def _end_with_input() -> None:
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Runs what the arguments say."""
    # For the command, which has it by default; this program waits for its end.
    signal.signal(signal.SIGTERM, lambda *_: None)
    command = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    threading.Thread(target=_end_with_input, daemon=True).start()
    code = command.wait()
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
