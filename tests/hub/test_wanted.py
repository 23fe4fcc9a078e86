from __future__ import annotations

import pytest

from moorage.hub.wanted import NotThereError, Wanted, wanted
from moorage.spec import ModelSpec

PARTS = tuple(f"q4/m-0000{n}-of-00003.gguf" for n in (1, 2, 3))
OTHERS = ("README.md", "small.gguf", "mmproj-F16.gguf", "q8/m-00001-of-00002.gguf")
LISTED = (*OTHERS, *reversed(PARTS), "q8/m-00002-of-00002.gguf")


def asked(file: str | None, mmproj: str | None = None, names: tuple[str, ...] = LISTED) -> Wanted:
    spec = ModelSpec(name="m", backend="llama.cpp", repo="o/n", file=file, mmproj=mmproj)
    return wanted(spec, names)


def refused(file: str | None, mmproj: str | None = None, names: tuple[str, ...] = LISTED) -> str:
    with pytest.raises(NotThereError) as caught:
        asked(file, mmproj, names)
    return caught.value.problem


def test_one_file_is_all_there_is_to_it() -> None:
    assert asked("small.gguf") == Wanted(("small.gguf",), "small.gguf")


def test_without_a_file_everything_is_wanted() -> None:
    assert asked(None) == Wanted(LISTED, None)


SAME_WEIGHTS = (
    *("pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "tf_model.h5", "rust_model.ot"),
    *("flax_model.msgpack", "original/consolidated.00.pth", "original/params.json"),
    *("onnx/model.onnx", "m-Q4.gguf"),
)
NEEDED = (
    *("config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors"),
    *("consolidated.safetensors", "tokenizer.model", "spk2info.pt", "training_args.bin"),
)


@pytest.mark.parametrize("backend", ["vllm", "sglang"])
def test_weights_are_fetched_once_where_only_one_format_is_read(backend: str) -> None:
    spec = ModelSpec(name="m", backend=backend, repo="o/n")

    assert wanted(spec, (*SAME_WEIGHTS, *NEEDED)) == Wanted(NEEDED, None)


@pytest.mark.parametrize("backend", ["vllm", "command"])
def test_weights_that_may_be_the_only_ones_are_fetched(backend: str) -> None:
    spec = ModelSpec(name="m", backend=backend, repo="o/n")
    names = (*SAME_WEIGHTS, "config.json", "adapter/model.safetensors")
    if backend == "command":
        names = (*names, "model.safetensors")

    assert wanted(spec, names) == Wanted(names, None)


@pytest.mark.parametrize("file", [*PARTS, "q4/m.gguf"])
def test_any_part_and_the_name_before_the_split_mean_the_whole_model(file: str) -> None:
    assert asked(file) == Wanted(PARTS, PARTS[0])


def test_a_part_that_is_not_there_means_the_others_are_not_enough() -> None:
    names = tuple(name for name in LISTED if name not in PARTS[1:])

    for file in (*PARTS, "q4/m.gguf"):
        assert refused(file, names=names) == (
            f"has not all parts of {file!r}: {PARTS[1]}, {PARTS[2]} missing; "
            "name a model that is whole"
        )


def test_a_part_alone_is_no_model_though_it_is_what_was_named() -> None:
    problem = refused(PARTS[1], names=("README.md", PARTS[1]))

    assert f"{PARTS[0]}, {PARTS[2]} missing" in problem


def test_a_file_comes_before_a_split_of_the_same_name() -> None:
    assert asked("q4/m.gguf", names=(*LISTED, "q4/m.gguf")).names == ("q4/m.gguf",)


def test_two_ways_to_be_split_are_told_apart_by_the_caller() -> None:
    names = (*LISTED, "q4/m-00001-of-00002.gguf", "q4/m-00002-of-00002.gguf")

    problem = refused("q4/m.gguf", names=names)

    assert problem == (
        "has no file 'q4/m.gguf'; which is meant, q4/m-00001-of-00002.gguf or "
        "q4/m-00001-of-00003.gguf?"
    )
    assert asked(PARTS[1], names=names).names == PARTS


def test_a_projector_comes_along() -> None:
    assert asked("small.gguf", "mmproj-F16.gguf") == Wanted(
        ("small.gguf", "mmproj-F16.gguf"), "small.gguf"
    )
    assert asked(PARTS[2], "mmproj-F16.gguf") == Wanted((*PARTS, "mmproj-F16.gguf"), PARTS[0])
    assert asked("small.gguf", "small.gguf").names == ("small.gguf",)


@pytest.mark.parametrize(
    ("file", "mmproj", "said"),
    [
        ("smal.gguf", None, "has no file 'smal.gguf'; it has small.gguf"),
        ("small.gguf", "mmproj.gguf", "has no file 'mmproj.gguf'; it has mmproj-F16.gguf"),
        ("q9/x-00002-of-00002.gguf", None, "has no file 'q9/x-00002-of-00002.gguf'; it has q8/m"),
        ("odd-00009-of-00003.gguf", None, "has no file 'odd-00009-of-00003.gguf'"),
        ("zzz", None, "has no file 'zzz'; it has README.md, mmproj-F16.gguf, q4/m"),
    ],
)
def test_what_is_not_there_is_told_with_what_is(file: str, mmproj: str | None, said: str) -> None:
    assert refused(file, mmproj).startswith(said)


def test_a_name_like_no_part_splits_nothing() -> None:
    names = ("odd-00009-of-00003.gguf", "a.txt")

    assert asked(names[0], names=names).names == (names[0],)
    assert refused("odd.gguf", names=names).startswith("has no file 'odd.gguf'")


def test_a_repo_without_files_says_so() -> None:
    assert refused(None, names=()) == refused("small.gguf", names=()) == "has no files"
