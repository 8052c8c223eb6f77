"""`python -m clearformer`."""

import sys

from clearformer.cli import main

if __name__ == "__main__":
    sys.exit(main())
