"""Port pools that no other test process of this machine uses at the same time."""

from __future__ import annotations

import atexit
import itertools
import os
import socket
import sys

POOL_SIZE = 100
BIG_POOL_SIZE = 1000
_BLOCK = 2400
_FIRST = 10_000
_LAST = 32_000
"""Below what the kernel hands out by itself."""


def _own_block() -> int:
    """Return the first port of a block that is ours while this process lives.

    Its number is held by an abstract socket, which ends with us however we end.
    """
    blocks = range(_FIRST, _LAST - _BLOCK, _BLOCK)
    if sys.platform != "linux":
        return blocks[os.getpid() % len(blocks)]
    for first in blocks:
        guard = socket.socket(socket.AF_UNIX)
        try:
            guard.bind(f"\0moorage-tests-{first}")
        except OSError:
            guard.close()
        else:
            atexit.register(guard.close)
            return first
    raise RuntimeError(f"{len(blocks)} test processes have all ports from {_FIRST} to {_LAST}")


_first = _own_block()
BIG_POOL = range(_first, _first + BIG_POOL_SIZE)
_pools = itertools.cycle(range(BIG_POOL.stop, _first + _BLOCK - POOL_SIZE, POOL_SIZE))


def ports() -> range:
    """Return a pool that no other test of this session uses at the same time."""
    first = next(_pools)
    return range(first, first + POOL_SIZE)
