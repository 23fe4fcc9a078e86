"""Splits a GGUF model in parts, as llama.cpp's own `gguf-split` does."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

_ALIGNMENT = 32
_WIDTHS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_U16, _I32, _STRING, _ARRAY = 2, 5, 8, 9


@dataclass(frozen=True)
class Tensor:
    """`about` is its description without the offset, `data` is padded."""

    about: bytes
    data: bytes


@dataclass(frozen=True)
class Model:
    keys: tuple[bytes, ...]
    tensors: tuple[Tensor, ...]

    def to_bytes(self) -> bytes:
        head = b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), len(self.keys))
        head += b"".join(self.keys)
        offset = 0
        for tensor in self.tensors:
            head += tensor.about + struct.pack("<Q", offset)
            offset += len(tensor.data)
        return _padded(head) + b"".join(tensor.data for tensor in self.tensors)


def split(model: Path, folder: Path, *, parts: int, empty_first: bool = False) -> list[Path]:
    """Write a whole model's parts into the folder, under its name, and return their paths."""
    whole = read(model)
    groups = [whole.tensors[n :: parts - empty_first] for n in range(parts - empty_first)]
    if empty_first:
        groups.insert(0, ())
    made: list[Path] = []
    for number, tensors in enumerate(groups):
        keys = (
            *(whole.keys if number == 0 else ()),
            key("split.no", _U16, struct.pack("<H", number)),
            key("split.count", _U16, struct.pack("<H", parts)),
            key("split.tensors.count", _I32, struct.pack("<i", len(whole.tensors))),
        )
        path = folder / f"{model.stem}-{number + 1:05}-of-{parts:05}.gguf"
        path.write_bytes(Model(keys, tensors).to_bytes())
        made.append(path)
    return made


def with_architecture(model: Path, architecture: str) -> bytes:
    """Return a model that says it is of another kind."""
    whole = read(model)
    text = struct.pack("<Q", len(architecture)) + architecture.encode()
    kept = tuple(each for each in whole.keys if b"general.architecture" not in each)
    made = key("general.architecture", _STRING, text)
    return replace(whole, keys=(made, *kept)).to_bytes()


def key(name: str, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", kind) + value


def read(path: Path) -> Model:
    data = path.read_bytes()
    tensors, keys = struct.unpack_from("<QQ", data, 8)
    at = 24
    kept: list[bytes] = []
    for _ in range(keys):
        end = _key_end(data, at)
        kept.append(data[at:end])
        at = end
    about: list[bytes] = []
    offsets: list[int] = []
    for _ in range(tensors):
        end = _text_end(data, at)
        end += 4 + 8 * struct.unpack_from("<I", data, end)[0] + 4
        about.append(data[at:end])
        offsets.append(struct.unpack_from("<Q", data, end)[0])
        at = end + 8
    body = data[len(_padded(data[:at])) :]
    ends = _ends(offsets, len(body))
    found = zip(about, offsets, ends, strict=True)
    return Model(tuple(kept), tuple(Tensor(text, body[a:b]) for text, a, b in found))


def _ends(offsets: list[int], size: int) -> Iterator[int]:
    yield from offsets[1:]
    yield size


def _key_end(data: bytes, at: int) -> int:
    at = _text_end(data, at)
    (kind,) = struct.unpack_from("<I", data, at)
    return _value_end(data, at + 4, kind)


def _value_end(data: bytes, at: int, kind: int) -> int:
    if kind == _STRING:
        return _text_end(data, at)
    if kind != _ARRAY:
        return at + _WIDTHS[kind]
    inner, count = struct.unpack_from("<IQ", data, at)
    at += 12
    for _ in range(count):
        at = _value_end(data, at, inner)
    return at


def _text_end(data: bytes, at: int) -> int:
    return at + 8 + int(struct.unpack_from("<Q", data, at)[0])


def _padded(data: bytes) -> bytes:
    return data.ljust(len(data) + -len(data) % _ALIGNMENT, b"\0")
