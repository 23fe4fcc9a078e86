"""`python -m moorage` is the command `moorage`."""

import sys

from moorage.cli import main

sys.exit(main())
