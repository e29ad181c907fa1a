"""``python -m experiments.evidence``."""

import sys

from experiments.evidence.command import main

if __name__ == "__main__":
    sys.exit(main())
