"""The command ``snapshard``, and ``python -m snapshard``."""

import signal


def main() -> None:
    """Loads the command line and runs it. Until it is loaded, Ctrl-C ends the process at once."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .cli import main as run

    run()


if __name__ == "__main__":
    main()
