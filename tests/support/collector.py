"""The garbage collector, kept from running in the middle of what must not depend on it."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def off() -> Generator[None]:
    """Collect nothing meanwhile: the finalisers of what ran before would run in what runs now."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
