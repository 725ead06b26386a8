"""``python -m snapshard``: equivalent to the command ``snapshard``."""

from .cli import main

if __name__ == "__main__":
    main()
