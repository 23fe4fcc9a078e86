from __future__ import annotations

import hashlib
import json

from log.making import some
from moorage.core import chain
from moorage.log.rows import to_row


def test_a_hash_can_be_made_with_any_tool_that_knows_sha256_and_json() -> None:
    previous = chain.genesis("00000000000000aa")
    row = to_row(some(1)[0], previous)
    text = json.dumps(list(row[:-1]), separators=(",", ":"))

    assert previous == hashlib.sha256(b"moorage log 00000000000000aa").hexdigest()
    assert row.hash == hashlib.sha256((previous + text).encode()).hexdigest()


def test_every_field_and_the_hash_before_count() -> None:
    row = (1, "at", "kind", 1, "m", 2, 3, 4, None, "{}")
    changed = [(*row[:i], "other", *row[i + 1 :]) for i in range(len(row))]
    hashes = {chain.link("a", each) for each in [row, *changed]} | {chain.link("b", row)}

    assert len(hashes) == len(row) + 2


def test_neighbouring_texts_cannot_trade_characters() -> None:
    assert chain.link("", ["ab", "c"]) != chain.link("", ["a", "bc"])
    assert chain.link("", [None]) != chain.link("", ["null"])
    assert chain.link("", ["\ud800"]) != chain.link("", ["?"])
