"""Which files of a repo a spec needs: a model with all of its parts, and its projector. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from moorage.gguf import named, parts_of, unsplit
from moorage.spec import ModelSpec

_NEAR_NAMES: Final = 3
_READ_SAFETENSORS: Final = frozenset({"vllm", "sglang"})
_SAME_WEIGHTS: Final = (
    *("pytorch_model*.bin", "tf_model*.h5", "flax_model*.msgpack", "rust_model.ot"),
    *("original/*", "*.onnx", "*.gguf"),
)
"""Weights once more, in formats that these two do not read where there are safetensors."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """`names` are all files to be had; `model` is the one a server is given, None for all of it."""

    names: tuple[str, ...]
    model: str | None


class NotThereError(LookupError):
    """A repo, or what is cached of it, has not what a spec names; `problem` says what it has."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


def wanted(spec: ModelSpec, names: Collection[str]) -> Wanted:
    """Return which of a repo's files are needed; raise NotThereError when one is not there.

    Without a file these are all, but for vLLM and SGLang no weights that they would not read.
    A model that is split in parts is named by any of them, or by the name it had before it was
    split. Its first part is what llama-server is given; it finds the others beside it.
    """
    if not names:
        raise NotThereError("has no files")
    if spec.file is None:
        return Wanted(_all(spec, names), None)
    names = frozenset(names)
    found = _model(spec.file, names)
    if missing := [name for name in found if name not in names]:
        problem = f"has not all parts of {spec.file!r}: {named(missing)} missing"
        raise NotThereError(f"{problem}; name a model that is whole")
    if spec.mmproj is None or spec.mmproj in found:
        return Wanted(found, found[0])
    if spec.mmproj not in names:
        raise NotThereError(_no_file(spec.mmproj, names))
    return Wanted((*found, spec.mmproj), found[0])


def _all(spec: ModelSpec, names: Collection[str]) -> tuple[str, ...]:
    at_root = any(name.endswith(".safetensors") and "/" not in name for name in names)
    if spec.backend not in _READ_SAFETENSORS or not at_root:
        return tuple(names)
    return tuple(name for name in names if not any(fnmatchcase(name, p) for p in _SAME_WEIGHTS))


def _model(name: str, names: Collection[str]) -> tuple[str, ...]:
    """Return all files of a model, the first part first, also those that are not among `names`."""
    parts = parts_of(name)
    if any(part in names for part in parts):
        return parts
    if name in names:
        return (name,)
    split = sorted({parts_of(each) for each in names if unsplit(each) == name} - {()})
    if len(split) == 1:
        return split[0]
    if split:
        several = " or ".join(parts[0] for parts in split)
        raise NotThereError(f"has no file {name!r}; which is meant, {several}?")
    raise NotThereError(_no_file(name, names))


def _no_file(name: str, names: Collection[str]) -> str:
    near = difflib.get_close_matches(name, names, n=_NEAR_NAMES, cutoff=0.4)
    return f"has no file {name!r}; it has {', '.join(near or sorted(names)[:_NEAR_NAMES])}"
