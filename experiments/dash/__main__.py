"""``python -m experiments.dash``."""

import sys

from experiments.dash.command import main

sys.exit(main())
