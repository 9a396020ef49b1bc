"""`python -m tests.models` prints the accuracy of every model at full size."""

import sys

from benchmarks.accuracy import main

sys.exit(main())
