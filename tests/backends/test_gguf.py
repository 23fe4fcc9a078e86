from __future__ import annotations

import contextlib
import os
import struct
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.gguf import Gguf, GgufError, check_gguf, write_tiny


def key(name: str, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", kind) + value


def header(*, version: int = 3, tensors: int = 0, keys: int = 0, rest: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + rest


def tensor(name: str, dims: tuple[int, ...], kind: int, offset: int) -> bytes:
    text = struct.pack("<Q", len(name)) + name.encode()
    shape = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return text + shape + struct.pack("<IQ", kind, offset)


def reason(path: Path) -> str:
    with pytest.raises(GgufError) as caught:
        check_gguf(path)
    return caught.value.reason


@pytest.fixture
def written(tmp_path: Path) -> Callable[[bytes], Path]:
    def write(data: bytes) -> Path:
        path = tmp_path / "model.gguf"
        path.write_bytes(data)
        return path

    return write


def test_a_tiny_model_is_whole_and_small(tiny: Path) -> None:
    check_gguf(tiny)

    assert 100_000 < tiny.stat().st_size < 130_000


def test_the_same_seed_writes_the_same_bytes(tmp_path: Path) -> None:
    paths = [tmp_path / str(index) for index in range(3)]
    for path, seed in zip(paths, (7, 7, 8), strict=True):
        write_tiny(path, seed=seed, name="same")

    contents = [path.read_bytes() for path in paths]
    assert contents[0] == contents[1] != contents[2]


def test_every_shape_that_can_be_written_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"

    write_tiny(path, name="naïve ⚓", seed=3, ctx=131_072, layers=3, tokenizer=False)

    check_gguf(path)


@pytest.mark.real
def test_a_real_model_is_whole(chat_model: Path) -> None:
    check_gguf(chat_model)


@pytest.mark.parametrize("cut", [1, 3, 4, 8, 23, 24, 100, 5_000, 20_000, -1, -32, -1000])
def test_a_file_cut_anywhere_is_refused(tiny: Path, cut: int) -> None:
    tiny.write_bytes(tiny.read_bytes()[:cut])

    assert "truncated" in reason(tiny) or "no GGUF file" in reason(tiny)


def test_a_cut_in_the_tensors_tells_both_sizes(tiny: Path) -> None:
    size = tiny.stat().st_size
    tiny.write_bytes(tiny.read_bytes()[:-1])

    assert reason(tiny) == (
        f"is truncated: it has {size - 1} bytes, its tensors need {size}; fetch it again"
    )


def test_a_longer_file_passes(tiny: Path) -> None:
    tiny.write_bytes(tiny.read_bytes() + b"more")

    check_gguf(tiny)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is empty"),
        (b"PK\3\4 a zip file, not a model", "is no GGUF file"),
        (header(version=1), "has version 1"),
        (header(version=99), "has version 99"),
        (b"GGUF\0\0\0\3" + bytes(16), "is big-endian"),
        (header(tensors=1 << 40), "claims 1099511627776 tensors"),
        (header(keys=1 << 40), "claims 1099511627776 keys"),
        (header(keys=1, rest=key("k", 77, b"")), "there is no value type 77"),
        (header(keys=1, rest=key("k", 9, struct.pack("<IQ", 8, 1 << 40))), "array items"),
        (header(keys=1, rest=key("k", 9, struct.pack("<IQ", 9, 1) * 9)), "no value type 9"),
        (header(tensors=1, rest=tensor("t", (1,) * 9, 0, 0)), "a tensor of 9 dimensions"),
        (header(tensors=1, rest=tensor("t", (1 << 40,), 0, 0)), "is truncated"),
        (header(keys=1, rest=struct.pack("<Q", 1 << 62)), "bytes of a name"),
        (header(keys=1, rest=key("k", 8, struct.pack("<Q", 1 << 62))), "is truncated"),
        (header(keys=1, rest=key("k", 9, struct.pack("<IQ", 6, 1 << 62))), "is truncated"),
        (header(keys=1, rest=key("k", 9, struct.pack("<IQQ", 8, 2, 1 << 63))), "is truncated"),
    ],
)
def test_a_damaged_header_is_refused_with_the_reason(
    written: Callable[[bytes], Path], data: bytes, said: str
) -> None:
    assert said in reason(written(data))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\n <!DOCTYPE html><html><title>Sign in</title>", "it is a web page"),
        (b"\xef\xbb\xbf<HTML><body>404</body>", "it is a web page"),
        (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code>', "it is a web page"),
        (b'{"error": "Invalid username or password."}', "it is JSON, such as a hub's refusal"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 98\n",
            "it is a Git LFS pointer, which stands for the model; run `git lfs pull`",
        ),
        (b"PK\3\4" + bytes(60), "it is a packed archive"),
        (b"tjgg\3\0\0\0" + bytes(60), "it is of a format before GGUF"),
        (struct.pack("<Q", 42) + b'{"__metadata__":{}', "it is a safetensors file"),
        (bytes(5000), "it begins with zeros"),
        (b"hello", "it does not start with GGUF"),
        (b"GG", "it does not start with GGUF"),
    ],
)
def test_what_stands_in_a_models_place_is_told(
    written: Callable[[bytes], Path], data: bytes, said: str
) -> None:
    assert f"is no GGUF file: {said}" in reason(written(data))


def test_what_could_hold_a_reader_up_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    os.mkfifo(path)

    assert reason(path) == "is no regular file"


@pytest.mark.parametrize(
    ("name", "kind", "value"),
    [
        ("general.architecture", 4, struct.pack("<I", 5)),
        ("general.alignment", 8, struct.pack("<Q", 2) + b"xx"),
        ("split.count", 8, struct.pack("<Q", 2) + b"xx"),
        ("split.no", 9, struct.pack("<IQ", 4, 0)),
        ("split.count", 2, struct.pack("<H", 0)),
    ],
)
def test_what_a_file_says_of_itself_in_another_type_is_left_to_the_server(
    written: Callable[[bytes], Path], name: str, kind: int, value: bytes
) -> None:
    path = written(header(keys=1, rest=key(name, kind, value)))

    assert check_gguf(path) == Gguf()


def test_a_header_without_tensors_needs_nothing_behind_it(
    written: Callable[[bytes], Path],
) -> None:
    architecture = struct.pack("<Q", 5) + b"llama"
    head = header(keys=1, rest=key("general.architecture", 8, architecture))

    assert check_gguf(written(head)) == Gguf(architecture="llama")
    assert "ends within its header" in reason(written(head[:-1]))


def test_a_big_endian_machine_leaves_the_numbers_to_its_server(
    written: Callable[[bytes], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "byteorder", "big")

    assert check_gguf(written(b"GGUF\0\0\0\3" + bytes(16))) == Gguf()


def test_a_large_file_with_a_large_vocabulary_takes_little_memory_and_few_reads(
    written: Callable[[bytes], Path],
) -> None:
    words = b"".join(struct.pack("<Q", 40) + b"w" * 40 for _ in range(100_000))
    rest = key("k", 9, struct.pack("<IQ", 8, 100_000) + words) + tensor("t", (10 << 30,), 24, 0)
    head = header(tensors=1, keys=1, rest=rest)
    path = written(head)
    os.truncate(path, len(head) + -len(head) % 32 + (10 << 30))
    tracemalloc.start()
    try:
        check_gguf(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert len(head) > 4 << 20
    assert peak < 3 << 20
    os.truncate(path, path.stat().st_size - 1)
    assert "is truncated" in reason(path)


def test_the_alignment_of_the_file_counts(written: Callable[[bytes], Path]) -> None:
    rest = key("general.alignment", 4, struct.pack("<I", 64)) + tensor("t", (32,), 0, 0)
    head = header(tensors=1, keys=1, rest=rest)
    whole = head.ljust(-(-len(head) // 64) * 64, b"\0") + bytes(128)

    check_gguf(written(whole))

    assert "truncated" in reason(written(whole[:-1]))


def test_quantized_tensors_are_counted_in_blocks(written: Callable[[bytes], Path]) -> None:
    head = header(tensors=1, rest=tensor("t", (256, 2), 12, 0))  # Q4_K: 256 weights in 144 bytes
    whole = head.ljust(-(-len(head) // 32) * 32, b"\0") + bytes(288)

    check_gguf(written(whole))

    assert "truncated" in reason(written(whole[:-1]))


def test_a_type_that_is_not_known_yet_is_left_to_the_server(
    written: Callable[[bytes], Path],
) -> None:
    head = header(tensors=1, rest=tensor("t", (256,), 4000, 0))

    check_gguf(written(head.ljust(-(-len(head) // 32) * 32, b"\0")))


def test_a_header_longer_than_the_first_read_is_read_on(written: Callable[[bytes], Path]) -> None:
    words = [struct.pack("<Q", 60) + b"w" * 60] * 70_000
    rest = key("k", 9, struct.pack("<IQ", 8, len(words)) + b"".join(words))

    check_gguf(written(header(keys=1, rest=rest) + bytes(64)))


def test_a_file_that_changed_is_read_again(tiny: Path) -> None:
    check_gguf(tiny)
    tiny.write_bytes(b"something else")

    assert "is no GGUF file" in reason(tiny)


_INTERESTING = st.sampled_from(
    [
        key("general.architecture", 8, struct.pack("<Q", 1) + b"x"),
        key("split.no", 2, b"\1\0"),
        key("split.count", 2, b"\2\0"),
        tensor("t", (32,), 0, 0),
        struct.pack("<Q", 1 << 63),
    ]
)


@given(
    parts=st.lists(_INTERESTING | st.binary(max_size=12), max_size=8),
    counts=st.tuples(*[st.integers(0, 5)] * 2),
)
def test_no_header_at_all_makes_it_fail_otherwise(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], counts: tuple[int, int]
) -> None:
    path = tmp_path_factory.getbasetemp() / "header.gguf"
    path.write_bytes(header(tensors=counts[0], keys=counts[1], rest=b"".join(parts)))

    with contextlib.suppress(GgufError):
        check_gguf(path)


@given(data=st.binary(max_size=400), whole_start=st.booleans())
def test_no_bytes_at_all_make_it_fail_otherwise(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, whole_start: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "noise.gguf"
    path.write_bytes(b"GGUF\3\0\0\0" + data if whole_start else data)

    with contextlib.suppress(GgufError):
        check_gguf(path)
