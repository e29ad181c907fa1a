"""``python -m experiments.report``."""

import sys

from experiments.report.command import main

sys.exit(main())
