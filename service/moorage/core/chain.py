"""The hash chain of the log: each row's hash covers the row and the hash before it.

It shows accidents and edits of single rows; who rewrites every row after an edit is not found out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

_canonical = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True).encode


def genesis(log_id: str) -> str:
    """Return the hash that the first row of a log chains to."""
    return hashlib.sha256(f"moorage log {log_id}".encode("ascii")).hexdigest()


def link(previous: str, row: Sequence[int | str | None]) -> str:
    """Return the hash of a row: sha256 of the previous hash and the row as compact ASCII JSON.

    `row` is `(seq, at, kind, version, model, run, port, pid, cause, data)`, data as stored text.
    """
    return hashlib.sha256((previous + _canonical(row)).encode("ascii")).hexdigest()
