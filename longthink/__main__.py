"""``python -m longthink`` is ``longthink``."""

import sys

from longthink.cli import main

if __name__ == "__main__":
    sys.exit(main())
