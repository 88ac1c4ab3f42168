"""``python -m msprobe`` is the ``msprobe`` command."""

from msprobe.cli import main

if __name__ == "__main__":
    main()
