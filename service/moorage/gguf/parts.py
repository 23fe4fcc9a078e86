"""Models that are split in several files, `NAME-00001-of-00003.gguf` and so on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from moorage.gguf.header import Gguf, GgufError, check_gguf

_PART: Final = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_NAMED: Final = 5
"""So many missing parts are named one by one."""


def parts_of(name: str) -> tuple[str, ...]:
    """Return the names of all parts of a model in order, given one; () for what is no part."""
    part = _PART.fullmatch(name)
    if part is None or not 1 <= int(part["number"]) <= int(part["count"]):
        return ()
    stem, count = part["stem"], part["count"]
    return tuple(f"{stem}-{number:05}-of-{count}.gguf" for number in range(1, int(count) + 1))


def unsplit(name: str) -> str:
    """Return the name that a part's model had before it was split; other names as they are."""
    part = _PART.fullmatch(name)
    return name if part is None else f"{part['stem']}.gguf"


def named(missing: list[str]) -> str:
    """Return names in a line of bounded length."""
    more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    return ", ".join(missing[:_NAMED]) + more


def whole_model(path: str) -> str:
    """Check every file of a local model; return the one that llama-server is given.

    Given the first part, it looks for the others under their names in the same folder: a name
    with `-of-` alone splits nothing, what the file says of itself does. Raises GgufError, and
    OSError for a file that cannot be read.
    """
    found = check_gguf(path)
    if found.parts == 1:
        return path
    parts = parts_of(Path(path).name)
    if len(parts) != found.parts:
        which, ending = f"part {found.part + 1} of {found.parts}", _ending(found)
        raise GgufError(path, f"is {which} of a model; its name has to end in {ending}")
    files = [Path(path).with_name(name) for name in parts]
    if missing := [file.name for file in files if not file.exists()]:
        raise GgufError(
            path,
            f"is a part of {found.parts}; {named(missing)} missing beside it; "
            "fetch them into the same folder",
        )
    for number, file in enumerate(files):
        _check_part(str(file), number, found.parts)
    return str(files[0])


def _ending(found: Gguf) -> str:
    return f"-{found.part + 1:05}-of-{found.parts:05}.gguf"


def _check_part(path: str, number: int, count: int) -> None:
    found = check_gguf(path)
    if (found.part, found.parts) != (number, count):
        raise GgufError(
            path,
            f"is part {found.part + 1} of {found.parts}, not what its name says; fetch it again",
        )
