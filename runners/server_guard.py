"""Runs a command, and kills it when the process that started this program is gone.

Run as ``python -I -S server_guard.py FOLDER COMMAND…`` by :mod:`snapshard.runners.job_server`. Its
standard input ends with the process that started it, whatever ended that; the folder is then
removed, too. It passes SIGTERM on, and exits with the command's exit code, or 128 + the number of
the signal that killed the command.
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
    """Runs the command in the arguments."""
    folder, *arguments = sys.argv[1:]
    command = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, process_group=0)
    signal.signal(signal.SIGTERM, lambda *_: _send(command, signal.SIGTERM))
    orphaned = threading.Event()

    def watch() -> None:
        os.read(0, 1)
        orphaned.set()
        _send(command, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    code = command.wait()
    if orphaned.is_set():
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
