"""Commands in this process, and in processes of their own: exit codes and words, no traceback."""

import contextlib
import io
import subprocess
import sys
from typing import Any

from harness import DETECTED, HARMLESS, WRONG

from snapshard import cli

CODES = {0, 1, 2, 3, 4}
"""Exit codes that stand for something."""

_LIMIT_S = 60.0


def run_command(*arguments: str) -> tuple[int, str]:
    """Exit code of a command in this process, and all that it printed."""
    sink = io.StringIO()
    with contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
        try:
            cli.main(list(arguments))
        except SystemExit as ended:
            code = ended.code
    assert isinstance(code, int)
    return code, sink.getvalue()


def try_commands(target: Any, content: bytes, *, number: int) -> tuple[str, str]:
    """Damages the file and asks ``verify``, and every second time another command, by turns."""
    others = (
        ("inspect", str(target.snapshot)),
        ("diff", str(target.other), str(target.snapshot)),
        ("rejects", str(target.snapshot)),
        ("why", str(target.other), str(target.snapshot)),
    )
    target.path.write_bytes(content)
    code, said = _run("verify", str(target.root))
    if "Traceback" in said or code not in CODES:
        return WRONG, f"verify ends with {code}: {said[-300:]}"
    outcome, how = target.judge(content, code, said)
    if outcome == WRONG:
        return WRONG, how
    if number % 2:
        return outcome, f"verify ends with {code}"
    other = others[number // 2 % len(others)]
    other_code, other_said = _run(*other)
    if "Traceback" in other_said or other_code not in CODES:
        return WRONG, f"{other[0]} ends with {other_code}: {other_said[-300:]}"
    if other_code and not other_said.strip():
        return WRONG, f"{other[0]} ends with {other_code} without a word"
    assert outcome in (DETECTED, HARMLESS)
    return outcome, f"verify ends with {code}, {other[0]} with {other_code}"


def _run(*arguments: str) -> tuple[int, str]:
    try:
        done = subprocess.run(
            [sys.executable, "-m", "snapshard", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return -1, f"it takes more than {_LIMIT_S:.0f} s"
    return done.returncode, done.stdout.decode(errors="replace")
