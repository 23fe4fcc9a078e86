"""Exports that are damaged or made up: a log of the same rows, or one line and no log."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz import bending, bounds
from fuzz.seeds import seeds
from fuzz.test_databases import chances, folder
from moorage.core import chain
from moorage.log.rows import to_json
from support.examples import NAMES, SHARES, Share


@cache
def exports() -> tuple[bytes, ...]:
    """Return every seed as an export."""
    found = []
    for seed in seeds():
        with folder() as state:
            found.append(bounds.run("export", "--state", seed.put(state)).out.encode())
    return tuple(found)


def imported(data: bytes, *, by_name: bool) -> None:
    """Import; what is refused leaves no folder, what is taken is exported as the same rows."""
    with folder() as back:
        if by_name:
            file = back.with_name("file")
            file.write_bytes(data)
            answer = bounds.run("import", file, "--state", back)
        else:
            answer = bounds.run("import", "-", "--state", back, stdin=data)
        if answer.status:
            assert not back.exists()
            return
        again = bounds.run("export", "--state", back).out
        assert [json.loads(line) for line in again.splitlines()] == [
            json.loads(line) for line in data.splitlines()
        ]
        assert bounds.run("ps", "--state", back).status in (0, 2)


def rehashed(objects: list[dict[str, object]]) -> None:
    """Chain the rows of an export anew, as far as they have what a hash is of."""
    previous = str(objects[0].get("after_hash"))
    for each in objects[1:-1]:
        try:
            data = each["data_text"] if "data_text" in each else to_json(each["data"])  # type: ignore[arg-type]
            row = [each[name] for name in bending.COLUMNS[:-2]]
            previous = chain.link(previous, [*row, data])  # type: ignore[list-item]
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
            return
        each["hash"] = previous
    objects[-1]["hash"] = previous


def bent(export: bytes, chance: Random) -> bytes:
    """Bend the bytes of an export, or what its lines say, with hashes that fit or not."""
    if chance.random() < 0.3:
        return bending.bent_bytes(export, chance)
    objects = [json.loads(line) for line in export.splitlines()]
    kind = chance.choice(sorted({str(each.get("kind")) for each in objects}))
    at = chance.choice([n for n, each in enumerate(objects) if str(each.get("kind")) == kind])
    objects[at] = bending.bent_json(objects[at], chance)
    if chance.random() < 0.7 and all(isinstance(each, dict) for each in objects):
        rehashed(objects)
    return bending.lines(objects).encode(errors="surrogatepass")


@pytest.mark.parametrize("share", SHARES, ids=NAMES)
def test_a_bent_export_comes_back_whole_or_not_at_all(share: Share) -> None:
    @share.of(25)
    @given(number=st.integers(0, len(exports()) - 1), chance=chances, by_name=st.booleans())
    def check(number: int, chance: Random, by_name: bool) -> None:
        imported(bent(exports()[number], chance), by_name=by_name)


@pytest.mark.parametrize("share", SHARES, ids=NAMES)
def test_text_that_is_no_export_is_refused(share: Share) -> None:
    @share.of(25)
    @given(data=st.one_of(st.binary(), st.text().map(str.encode)))
    def check(data: bytes) -> None:
        with folder() as back:
            assert bounds.run("import", "-", "--state", back, stdin=data).status == 2
            assert not back.exists()


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_loaded", "many"), ("ports", [1]), ("ports", [[1, 2, 3]]), ("min_residency_s", 10**400)],
)
def test_a_row_with_fitting_hashes_and_values_that_no_event_has_is_refused(
    field: str, value: object, tmp_path: Path
) -> None:
    objects = [json.loads(line) for line in exports()[0].splitlines()]
    objects[2]["data"][field] = value
    rehashed(objects)
    (tmp_path / "file").write_text(bending.lines(objects))

    answer = bounds.run("import", tmp_path / "file", "--state", tmp_path / "back")

    assert answer.status == 2
    assert f"line 3 has a {field}" in answer.err
