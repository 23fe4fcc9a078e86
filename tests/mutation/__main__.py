"""`python -m tests.mutation`, from the root of a checkout."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest is told to

from mutation.check import main

sys.exit(main())
