"""Fetches as another program does: `other.py CACHE ENDPOINT FILE`; prints the bytes it brought.

At SIGUSR1 it forks a child that lives until the end of their common input, and says so.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

from moorage.hub import HubAccess, HubFetcher
from moorage.spec import ModelSpec


def fork(_number: int, _frame: FrameType | None) -> None:
    if os.fork() == 0:
        sys.stdin.read()
        os._exit(0)
    print("forked", flush=True)


signal.signal(signal.SIGUSR1, fork)
cache, endpoint, file = sys.argv[1:]
access = HubAccess(endpoint=endpoint, token=False, cache_dir=cache)
spec = ModelSpec(name="m", backend="command", repo="org/model", file=file)
print(HubFetcher(access).fetch(spec, lambda _: None, threading.Event()).fetched_bytes)
