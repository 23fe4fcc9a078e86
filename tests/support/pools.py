"""Port pools that no other test process of this machine uses at the same time."""

from __future__ import annotations

import atexit
import fcntl
import itertools
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

POOL_SIZE = 100
BIG_POOL_SIZE = 1000
_BLOCK = 2400
_BLOCKS = (*range(10_000, 18_000 - _BLOCK, _BLOCK), *range(19_000, 32_000 - _BLOCK, _BLOCK))
"""Below what the kernel hands out by itself, and apart from what programs take unasked."""


def _own_block() -> int:
    """Return the first port of a block that is ours while this process lives.

    Its number is held by an abstract socket, which ends with us however we end.
    """
    if sys.platform != "linux":
        return _BLOCKS[os.getpid() % len(_BLOCKS)]
    for first in _BLOCKS:
        guard = socket.socket(socket.AF_UNIX)
        try:
            guard.bind(f"\0moorage-tests-{first}")
        except OSError:
            guard.close()
        else:
            atexit.register(guard.close)
            return first
    raise RuntimeError(f"{len(_BLOCKS)} other test processes have all blocks of ports")


_first = _own_block()
BIG_POOL = range(_first, _first + BIG_POOL_SIZE)
_pools = itertools.cycle(range(BIG_POOL.stop, _first + _BLOCK - POOL_SIZE, POOL_SIZE))


def ports() -> range:
    """Return a pool that no other test of this session uses at the same time."""
    first = next(_pools)
    return range(first, first + POOL_SIZE)


@contextmanager
def default_ports() -> Iterator[None]:
    """Keep the other test processes of this checkout from the ports that programs take unasked.

    The wait is bounded by the test's own limit.
    """
    with Path(__file__).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
