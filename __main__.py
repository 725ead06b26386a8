"""``python -m snapshard``: the same as the command ``snapshard``."""

from .cli import main

if __name__ == "__main__":
    main()
