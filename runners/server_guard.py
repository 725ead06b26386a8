"""Runs a command, and kills it when whoever started this program is gone, by whatever signal.

Run as ``python -I -S server_guard.py FOLDER COMMAND…`` by :mod:`snapshard.runners.job_server`. Its
standard input comes to an end with the process that started it; then the folder goes, too. It
passes SIGTERM on, and ends with the exit code of the command, 128 + its number for a signal.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading


def _send(command: "subprocess.Popen[bytes]", number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(command.pid, number)


def main() -> None:
    """Runs what the arguments say."""
    folder, *arguments = sys.argv[1:]
    command = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, process_group=0)
    signal.signal(signal.SIGTERM, lambda *_: _send(command, signal.SIGTERM))
    left_alone = threading.Event()

    def watch() -> None:
        os.read(0, 1)
        left_alone.set()
        _send(command, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    code = command.wait()
    if left_alone.is_set():
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
