"""`python -m curriculum VERB ...`."""

import sys

from curriculum.cli import main

if __name__ == "__main__":
    sys.exit(main())
