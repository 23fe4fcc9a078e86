"""For tests that become another user: whether that user can run this checkout at all."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

import moorage

_NEEDED = stat.S_IROTH | stat.S_IXOTH


def require_code_for_others() -> None:
    """Skip a test when a folder above the code lets its owner in only, as a private home does."""
    for place in (Path(moorage.__file__).parent, Path(__file__), Path(sys.prefix)):
        for folder in place.parents:
            if folder.stat().st_mode & stat.S_IXOTH == 0:
                pytest.skip(f"{folder} lets other users not in, and this test becomes one")
        if place.is_dir() and place.stat().st_mode & _NEEDED != _NEEDED:
            pytest.skip(f"{place} cannot be read by other users, and this test becomes one")
