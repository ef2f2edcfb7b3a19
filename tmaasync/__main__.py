"""``python -m tmaasync``."""

from tmaasync.cli import main

if __name__ == "__main__":
    main()
