"""`python -m bertjax` is the `bertjax` command."""

import sys

from bertjax.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
