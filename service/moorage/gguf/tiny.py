"""Writes a tiny valid GGUF model, for tests and demonstrations."""

from __future__ import annotations

import array
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
_ALIGNMENT: Final = 32

_UINT32: Final = 4
_INT32: Final = 5
_FLOAT32: Final = 6
_BOOL: Final = 7
_STRING: Final = 8
_ARRAY: Final = 9
_PACKS: Final = {_UINT32: "<I", _INT32: "<i", _FLOAT32: "<f", _BOOL: "<?"}

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
        return raw.ljust(_padded(len(raw)), b"\0")


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
    Path(path).write_bytes(header.ljust(_padded(len(header)), b"\0") + b"".join(body))


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


def _padded(size: int) -> int:
    return size + -size % _ALIGNMENT
