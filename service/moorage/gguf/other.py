"""Says what a file is that was taken for a GGUF model."""

from __future__ import annotations

from typing import Final

_LONGEST_HEADER: Final = 100_000_000
_FETCH: Final = "fetch the file itself"

_BEGINNINGS: Final = (
    (
        (b"version https://git-lfs",),
        "it is a Git LFS pointer, which stands for the model; run `git lfs pull` in its folder",
    ),
    (
        (b"PK\3\4", b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"7z\xbc\xaf", b"\x28\xb5\x2f\xfd"),
        "it is a packed archive, or weights of PyTorch; unpack it, or convert them to GGUF",
    ),
    (
        (b"tjgg", b"fmgg", b"lmgg", b"algg"),
        "it is of a format before GGUF, which no server reads any more; convert the model again",
    ),
)


def what_instead(data: bytes) -> str:
    """Return what a file that begins so is, and what to do."""
    for beginnings, said in _BEGINNINGS:
        if data.startswith(beginnings):
            return said
    text = data.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype", b"<html", b"<head", b"<?xml")):
        return f"it is a web page, saved in the model's place; {_FETCH} (of a hub: /resolve/)"
    if text.startswith((b"{", b"[")):
        return f"it is JSON, such as a hub's refusal; read it, then {_FETCH}"
    if int.from_bytes(data[:8], "little") < _LONGEST_HEADER and data[8:9] == b"{":
        return "it is a safetensors file; convert it to GGUF, or serve its folder with vllm"
    if not any(data):
        return f"it begins with zeros, as an unfinished download does; {_FETCH} again"
    return "it does not start with GGUF"
