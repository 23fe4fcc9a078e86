"""GGUF, the model file of llama.cpp: refuse a damaged one, and write a tiny valid one.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (version 3, little-endian).
"""

from __future__ import annotations

import array
import functools
import math
import os
import random
import struct
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_MAGIC: Final = b"GGUF"
_VERSION: Final = 3
_READABLE_VERSIONS: Final = (2, 3)
_ALIGNMENT: Final = 32

_UINT32: Final = 4
_INT32: Final = 5
_FLOAT32: Final = 6
_BOOL: Final = 7
_STRING: Final = 8
_ARRAY: Final = 9
_WIDTHS: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_PACKS: Final = {_UINT32: "<I", _INT32: "<i", _FLOAT32: "<f", _BOOL: "<?"}

# Elements and bytes of one block of each tensor type, by its number in the file.
_BLOCKS: Final = {
    0: (1, 4),  # F32
    1: (1, 2),  # F16
    2: (32, 18),  # Q4_0
    3: (32, 20),  # Q4_1
    6: (32, 22),  # Q5_0
    7: (32, 24),  # Q5_1
    8: (32, 34),  # Q8_0
    9: (32, 36),  # Q8_1
    10: (256, 84),  # Q2_K
    11: (256, 110),  # Q3_K
    12: (256, 144),  # Q4_K
    13: (256, 176),  # Q5_K
    14: (256, 210),  # Q6_K
    15: (256, 292),  # Q8_K
    16: (256, 66),  # IQ2_XXS
    17: (256, 74),  # IQ2_XS
    18: (256, 98),  # IQ3_XXS
    19: (256, 50),  # IQ1_S
    20: (32, 18),  # IQ4_NL
    21: (256, 110),  # IQ3_S
    22: (256, 82),  # IQ2_S
    23: (256, 136),  # IQ4_XS
    24: (1, 1),  # I8
    25: (1, 2),  # I16
    26: (1, 4),  # I32
    27: (1, 8),  # I64
    28: (1, 8),  # F64
    29: (256, 56),  # IQ1_M
    30: (1, 2),  # BF16
    34: (256, 54),  # TQ1_0
    35: (256, 66),  # TQ2_0
    39: (32, 17),  # MXFP4
}

# A header that claims more than these is taken for damage, not for a reason to loop for hours.
_MAX_KEYS: Final = 1 << 16
_MAX_TENSORS: Final = 1 << 20
_MAX_STRINGS: Final = 1 << 24
_MAX_HEADER_BYTES: Final = 1 << 30
_MAX_DEPTH: Final = 4
_FIRST_READ_BYTES: Final = 1 << 20


class GgufError(ValueError):
    """The file cannot be a usable GGUF model; `reason` says why, without the path."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} {reason}")
        self.path = path
        self.reason = reason


# --- reading ---


def check_gguf(path: str | os.PathLike[str]) -> None:
    """Refuse what is no GGUF file, a damaged header, and a file shorter than its tensors.

    Reads the header only; a file that has not changed since it passed is not read again.
    Raises GgufError, and OSError when the file cannot be opened.
    """
    status = Path(path).stat()
    _check_version_of_file(os.fspath(path), status.st_ino, status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=256)
def _check_version_of_file(path: str, _inode: int, size: int, _mtime_ns: int) -> None:
    # A map of the file would be simpler, and kill the process when the file shrinks meanwhile.
    wanted = _FIRST_READ_BYTES
    with Path(path).open("rb") as file:
        data = file.read(wanted)
        while True:
            try:
                _check_header(_Header(path, data), size)
            except _MoreNeededError:
                if len(data) >= min(size, _MAX_HEADER_BYTES) or not (more := file.read(wanted)):
                    raise GgufError(path, "ends within its header: it is truncated") from None
                data += more
                wanted = len(data)
            else:
                return


class _MoreNeededError(Exception):
    """The header goes on behind the bytes read so far."""


class _Header:
    """The first bytes of a file and how far they are read."""

    def __init__(self, path: str, data: bytes) -> None:
        self._path = path
        self._data = data
        self.offset = 0

    def bad(self, reason: str) -> GgufError:
        return GgufError(self._path, reason)

    def take(self, count: int) -> bytes:
        start = self.offset
        self.skip(count)
        return self._data[start : self.offset]

    def skip(self, count: int) -> None:
        self.offset += count
        if self.offset > len(self._data):
            raise _MoreNeededError

    def number(self, form: str = "<Q") -> int:
        try:
            (value,) = struct.unpack_from(form, self._data, self.offset)
        except struct.error:
            raise _MoreNeededError from None
        self.offset += struct.calcsize(form)
        return int(value)

    def count(self, what: str, limit: int) -> int:
        value = self.number()
        if value > limit:
            raise self.bad(f"has a damaged header: it claims {value} {what}")
        return value

    def skip_string(self) -> None:
        self.skip(self.number())

    def value(self, kind: int, depth: int = 0) -> int | None:
        """Step over a value; return it when it is a 32-bit unsigned number."""
        if kind == _UINT32:
            return self.number("<I")
        if kind == _STRING:
            self.skip_string()
        elif kind == _ARRAY and depth < _MAX_DEPTH:
            self._skip_array(depth)
        elif kind in _WIDTHS:
            self.skip(_WIDTHS[kind])
        else:
            raise self.bad(f"has a damaged header: there is no value type {kind}")
        return None

    def _skip_array(self, depth: int) -> None:
        kind = self.number("<I")
        if kind in _WIDTHS:
            self.skip(self.number() * _WIDTHS[kind])
            return
        for _ in range(self.count("array items", _MAX_STRINGS)):
            self.value(kind, depth + 1)


def _check_header(header: _Header, size: int) -> None:
    tensors = _check_start(header, size)
    alignment = _ALIGNMENT
    for _ in range(header.count("keys", _MAX_KEYS)):
        key = header.take(header.number())
        value = header.value(header.number("<I"))
        if key == b"general.alignment" and value:
            alignment = value
    end = max((_tensor_end(header) for _ in range(tensors)), default=0)
    wanted = _padded(header.offset, alignment) + end
    if size < wanted:
        raise header.bad(f"is truncated: it has {size} bytes, its tensors need {wanted}")


def _check_start(header: _Header, size: int) -> int:
    if size == 0:
        raise header.bad("is empty")
    if size < len(_MAGIC) or header.take(len(_MAGIC)) != _MAGIC:
        raise header.bad("is no GGUF file: it does not start with GGUF")
    version = header.number("<I")
    if version not in _READABLE_VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        why = "is big-endian" if swapped in _READABLE_VERSIONS else f"has version {version}"
        raise header.bad(f"cannot be read: the GGUF file {why}; convert it again")
    return header.count("tensors", _MAX_TENSORS)


def _tensor_end(header: _Header) -> int:
    """Step over a tensor's description; return where its data end, from the data's start."""
    header.skip_string()
    dimensions = header.number("<I")
    if dimensions > 8:  # noqa: PLR2004 - ggml has 4; room for what comes
        raise header.bad(f"has a damaged header: a tensor of {dimensions} dimensions")
    elements = math.prod(header.number() for _ in range(dimensions))
    per_block, block_bytes = _BLOCKS.get(header.number("<I"), (elements or 1, 0))
    return header.number() + -(-elements // per_block) * block_bytes


def _padded(size: int, alignment: int) -> int:
    return size + -size % alignment


# --- writing ---

_WIDTH: Final = 32
_INNER_WIDTH: Final = 64
_HEADS: Final = 2
_UNKNOWN, _BEGIN, _END = "<unk>", "<s>", "</s>"
_NORMAL_TOKEN, _UNKNOWN_TOKEN, _CONTROL_TOKEN, _BYTE_TOKEN = 1, 2, 3, 6
_FIRST_BYTE_TOKEN: Final = 3  # after the three above come the 256 single bytes
_ANSWERED: Final = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 "
_BIAS: Final = 4.0
_CHAT_TEMPLATE: Final = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True, slots=True)
class _Tensor:
    name: str
    dims: tuple[int, ...]
    values: array.array[float]

    def data(self) -> bytes:
        values = self.values
        if sys.byteorder == "big":
            values = array.array("f", values)
            values.byteswap()
        raw = values.tobytes()
        return raw.ljust(_padded(len(raw), _ALIGNMENT), b"\0")


def write_tiny(
    path: str | os.PathLike[str],
    *,
    name: str = "tiny",
    seed: int = 0,
    ctx: int = 512,
    layers: int = 1,
    tokenizer: bool = True,
) -> None:
    """Write a llama model of random weights that any llama-server loads in milliseconds.

    116 kB with one layer. It answers letters, digits and blanks and never ends by itself, so that
    N tokens asked for are N bytes of valid UTF-8. `ctx` bounds them: 131072 allows requests that
    run for minutes. Without the tokenizer a server says it is healthy, and aborts on its first
    completion.
    """
    tokens = _tokens()
    keys = [*_keys(name, ctx, layers, len(tokens)), *_tokenizer_keys(tokens, there=tokenizer)]
    tensors = _tensors(seed, layers, len(tokens))
    head = [_MAGIC, struct.pack("<IQQ", _VERSION, len(tensors), len(keys)), *keys]
    body = [tensor.data() for tensor in tensors]
    offset = 0
    for tensor, data in zip(tensors, body, strict=True):
        head.append(_describe(tensor, offset))
        offset += len(data)
    header = b"".join(head)
    Path(path).write_bytes(header.ljust(_padded(len(header), _ALIGNMENT), b"\0") + b"".join(body))


def _tokens() -> list[tuple[str, int]]:
    """Return each token's text and type: markers, every byte, a blank, the chat's marks."""
    marks = [(_UNKNOWN, _UNKNOWN_TOKEN), (_BEGIN, _CONTROL_TOKEN), (_END, _CONTROL_TOKEN)]
    single = [(f"<0x{byte:02X}>", _BYTE_TOKEN) for byte in range(256)]
    chat = [("<|im_start|>", _CONTROL_TOKEN), ("<|im_end|>", _CONTROL_TOKEN)]
    return [*marks, *single, ("\u2581", _NORMAL_TOKEN), *chat]


def _keys(name: str, ctx: int, layers: int, vocabulary: int) -> list[bytes]:
    return [
        _key("general.architecture", _STRING, "llama"),
        _key("general.name", _STRING, name),
        _key("general.file_type", _UINT32, 0),
        _key("llama.context_length", _UINT32, ctx),
        _key("llama.embedding_length", _UINT32, _WIDTH),
        _key("llama.block_count", _UINT32, layers),
        _key("llama.feed_forward_length", _UINT32, _INNER_WIDTH),
        _key("llama.attention.head_count", _UINT32, _HEADS),
        _key("llama.attention.head_count_kv", _UINT32, _HEADS),
        _key("llama.attention.layer_norm_rms_epsilon", _FLOAT32, 1e-5),
        _key("llama.rope.dimension_count", _UINT32, _WIDTH // _HEADS),
        _key("llama.vocab_size", _UINT32, vocabulary),
    ]


def _tokenizer_keys(tokens: list[tuple[str, int]], *, there: bool) -> list[bytes]:
    if not there:
        return [_key("tokenizer.ggml.model", _STRING, "none")]
    texts = [text for text, _ in tokens]
    kinds = [kind for _, kind in tokens]
    scores = [-1.0 if kind == _NORMAL_TOKEN else 0.0 for kind in kinds]
    return [
        _key("tokenizer.ggml.model", _STRING, "llama"),
        _array("tokenizer.ggml.tokens", _STRING, texts),
        _array("tokenizer.ggml.scores", _FLOAT32, scores),
        _array("tokenizer.ggml.token_type", _INT32, kinds),
        _key("tokenizer.ggml.unknown_token_id", _UINT32, texts.index(_UNKNOWN)),
        _key("tokenizer.ggml.bos_token_id", _UINT32, texts.index(_BEGIN)),
        _key("tokenizer.ggml.eos_token_id", _UINT32, texts.index(_END)),
        _key("tokenizer.ggml.add_bos_token", _BOOL, True),
        _key("tokenizer.chat_template", _STRING, _CHAT_TEMPLATE),
    ]


def _tensors(seed: int, layers: int, vocabulary: int) -> list[_Tensor]:
    """Return the weights.

    Column 0 of every embedding is a large constant that both residual branches leave alone (row 0
    of their last matrix is zero), so column 0 of the output matrix is a bias for each token.
    """
    width, inner = _WIDTH, _INNER_WIDTH
    chance = random.Random(seed)  # noqa: S311 - weights, not secrets

    def weights(name: str, rows: int, columns: int) -> _Tensor:
        values = array.array("f", (chance.gauss(0, 0.1) for _ in range(rows * columns)))
        return _Tensor(f"{name}.weight", (columns, rows), values)

    def silent_row(tensor: _Tensor) -> _Tensor:
        tensor.values[: tensor.dims[0]] = array.array("f", bytes(4 * tensor.dims[0]))
        return tensor

    def ones(name: str) -> _Tensor:
        return _Tensor(f"{name}.weight", (width,), array.array("f", [1.0] * width))

    tensors = [_with_column(weights("token_embd", vocabulary, width), [_BIAS] * vocabulary)]
    for layer in (f"blk.{index}" for index in range(layers)):
        tensors += [ones(f"{layer}.attn_norm"), ones(f"{layer}.ffn_norm")]
        tensors += [weights(f"{layer}.attn_{part}", width, width) for part in "qkv"]
        tensors += [silent_row(weights(f"{layer}.attn_output", width, width))]
        tensors += [weights(f"{layer}.ffn_{part}", inner, width) for part in ("gate", "up")]
        tensors += [silent_row(weights(f"{layer}.ffn_down", width, inner))]
    output = _with_column(weights("output", vocabulary, width), _biases(vocabulary))
    return [*tensors, ones("output_norm"), output]


def _biases(vocabulary: int) -> list[float]:
    answered = {_FIRST_BYTE_TOKEN + byte for byte in _ANSWERED}
    return [_BIAS if token in answered else -_BIAS for token in range(vocabulary)]


def _with_column(tensor: _Tensor, column: list[float]) -> _Tensor:
    tensor.values[:: tensor.dims[0]] = array.array("f", column)
    return tensor


def _describe(tensor: _Tensor, offset: int) -> bytes:
    dims = struct.pack(f"<I{len(tensor.dims)}Q", len(tensor.dims), *tensor.dims)
    return _text(tensor.name) + dims + struct.pack("<IQ", 0, offset)


def _key(name: str, kind: int, value: str | float) -> bytes:
    return _text(name) + struct.pack("<I", kind) + _packed(kind, value)


def _array(name: str, kind: int, items: Iterable[str | float]) -> bytes:
    packed = [_packed(kind, item) for item in items]
    head = struct.pack("<IIQ", _ARRAY, kind, len(packed))
    return _text(name) + head + b"".join(packed)


def _packed(kind: int, value: str | float) -> bytes:
    return _text(value) if isinstance(value, str) else struct.pack(_PACKS[kind], value)


def _text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack("<Q", len(encoded)) + encoded
