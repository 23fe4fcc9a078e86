"""Run xllamacpp's llama.cpp server as a process of its own, with llama-server's options.

Started as a script, not as a module of the package, and imports nothing of ours: a model is ready
sooner. Exit status: 2 for an option that cannot be used, 1 for a server that did not start.

SIGTERM and SIGINT keep their default action, at any moment, also with a request in flight: the
library's own way to stop waits for running requests, without a limit, and holds the interpreter
while it does. Requests that should be answered are drained before a server is stopped.
"""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

_Setter = Callable[[Any, Any, str], None]
"""Puts the text of an option into CommonParams; gets the library too, for its enumerations."""


class _UsageError(Exception):
    """An option cannot be used."""


def _to(attribute: str, convert: Callable[[str], object] = str) -> _Setter:
    def put(_library: Any, params: Any, text: str) -> None:
        _assign(params, attribute, convert(text))

    return put


def _constant(attribute: str, value: object) -> _Setter:
    def put(_library: Any, params: Any, _text: str) -> None:
        _assign(params, attribute, value)

    return put


def _choice(attribute: str, enumeration: str, prefix: str, *names: str) -> _Setter:
    """Choose a member of an enumeration; with no names, any member is allowed."""

    def put(library: Any, params: Any, text: str) -> None:
        _assign(params, attribute, _member(library, enumeration, prefix, text, names))

    return put


def _member(library: Any, enumeration: str, prefix: str, text: str, names: Sequence[str]) -> Any:
    found = getattr(getattr(library, enumeration), prefix + text.upper().replace("-", "_"), None)
    if found is None or (names and text not in names):
        raise ValueError(f"{text!r} is none of {', '.join(names) or 'the known types'}")
    return found


def _assign(params: Any, attribute: str, value: object) -> None:
    *parents, last = attribute.split(".")
    for parent in parents:
        params = getattr(params, parent)
    setattr(params, last, value)


def _whole(text: str) -> int:
    return int(text, 10)


def _layers(text: str) -> int:
    return -1 if text == "auto" else _whole(text)


def _file(text: str) -> str:
    return Path(text).read_text(encoding="utf-8")


def _texts(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def _file_lines(text: str) -> list[str]:
    return [line.strip() for line in _file(text).splitlines() if line.strip()]


def _alias(text: str) -> set[str]:
    return set(_texts(text))


def _flash_attention(library: Any, params: Any, text: str) -> None:
    names = {"on": "enabled", "off": "disabled", "auto": "auto"}
    if text not in names:
        raise ValueError(f"{text!r} is none of {', '.join(names)}")
    kind = _member(
        library,
        "llama_flash_attn_type",
        "LLAMA_FLASH_ATTN_TYPE_",
        names[text],
        tuple(names.values()),
    )
    params.flash_attn_type = kind


def _rerank(library: Any, params: Any, _text: str) -> None:
    params.embedding = True
    params.pooling_type = library.llama_pooling_type.LLAMA_POOLING_TYPE_RANK


def _load_mode(name: str) -> _Setter:
    def put(library: Any, params: Any, _text: str) -> None:
        params.load_mode = getattr(library.llama_load_mode, f"LLAMA_LOAD_MODE_{name}")

    return put


def _cache_type(attribute: str) -> _Setter:
    names = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
    return _choice(attribute, "ggml_type", "GGML_TYPE_", *names)


_POOLING = ("none", "mean", "cls", "last", "rank")

# Options with a value. The first name is the one told in messages.
_VALUES: Final[dict[tuple[str, ...], _Setter]] = {
    ("--model", "-m"): _to("model.path"),
    ("--host",): _to("hostnames", _texts),
    ("--port",): _to("port", _whole),
    ("--alias", "-a"): _to("model_alias", _alias),
    ("--mmproj", "-mm"): _to("mmproj.path"),
    ("--ctx-size", "-c"): _to("n_ctx", _whole),
    ("--parallel", "-np"): _to("n_parallel", _whole),
    ("--threads", "-t"): _to("cpuparams.n_threads", _whole),
    ("--threads-batch", "-tb"): _to("cpuparams_batch.n_threads", _whole),
    ("--threads-http",): _to("n_threads_http", _whole),
    ("--n-gpu-layers", "--gpu-layers", "-ngl"): _to("n_gpu_layers", _layers),
    ("--main-gpu", "-mg"): _to("main_gpu", _whole),
    ("--split-mode", "-sm"): _choice(
        "split_mode", "llama_split_mode", "LLAMA_SPLIT_MODE_", "none", "layer", "row", "tensor"
    ),
    ("--flash-attn", "-fa"): _flash_attention,
    ("--cache-type-k", "-ctk"): _cache_type("cache_type_k"),
    ("--cache-type-v", "-ctv"): _cache_type("cache_type_v"),
    ("--batch-size", "-b"): _to("n_batch", _whole),
    ("--ubatch-size", "-ub"): _to("n_ubatch", _whole),
    ("--n-predict", "--predict", "-n"): _to("n_predict", _whole),
    ("--keep",): _to("n_keep", _whole),
    ("--cache-reuse",): _to("n_cache_reuse", _whole),
    ("--cache-ram", "-cram"): _to("cache_ram_mib", _whole),
    ("--slot-save-path",): _to("slot_save_path"),
    ("--slot-prompt-similarity", "-sps"): _to("slot_prompt_similarity", float),
    ("--pooling",): _choice("pooling_type", "llama_pooling_type", "LLAMA_POOLING_TYPE_", *_POOLING),
    ("--embd-normalize",): _to("embd_normalize", _whole),
    ("--chat-template",): _to("chat_template"),
    ("--chat-template-file",): _to("chat_template", _file),
    ("--reasoning-format",): _choice(
        "reasoning_format",
        "common_reasoning_format",
        "COMMON_REASONING_FORMAT_",
        "none",
        "auto",
        "deepseek",
        "deepseek-legacy",
    ),
    ("--rope-freq-base",): _to("rope_freq_base", float),
    ("--rope-freq-scale",): _to("rope_freq_scale", float),
    ("--seed", "-s"): _to("sampling.seed", lambda text: _whole(text) % (1 << 32)),
    ("--temperature", "--temp"): _to("sampling.temp", float),
    ("--top-k",): _to("sampling.top_k", _whole),
    ("--top-p",): _to("sampling.top_p", float),
    ("--min-p",): _to("sampling.min_p", float),
    ("--repeat-penalty",): _to("sampling.penalty_repeat", float),
    ("--repeat-last-n",): _to("sampling.penalty_last_n", _whole),
    ("--presence-penalty",): _to("sampling.penalty_present", float),
    ("--frequency-penalty",): _to("sampling.penalty_freq", float),
    ("--api-key",): _to("api_keys", _texts),
    ("--api-key-file",): _to("api_keys", _file_lines),
    ("--api-prefix",): _to("api_prefix"),
    ("--ssl-key-file",): _to("ssl_file_key"),
    ("--ssl-cert-file",): _to("ssl_file_cert"),
    ("--sse-ping-interval",): _to("sse_ping_interval", _whole),
    ("--verbosity", "--log-verbosity", "-lv"): _to("verbosity", _whole),
}

_FLAGS: Final[dict[tuple[str, ...], _Setter]] = {
    ("--jinja",): _constant("use_jinja", value=True),
    ("--no-jinja",): _constant("use_jinja", value=False),
    ("--warmup",): _constant("warmup", value=True),
    ("--no-warmup",): _constant("warmup", value=False),
    ("--cont-batching", "-cb"): _constant("cont_batching", value=True),
    ("--no-cont-batching", "-nocb"): _constant("cont_batching", value=False),
    ("--context-shift",): _constant("ctx_shift", value=True),
    ("--no-context-shift",): _constant("ctx_shift", value=False),
    ("--cache-prompt",): _constant("cache_prompt", value=True),
    ("--no-cache-prompt",): _constant("cache_prompt", value=False),
    ("--kv-unified", "-kvu"): _constant("kv_unified", value=True),
    ("--kv-offload", "-kvo"): _constant("no_kv_offload", value=False),
    ("--no-kv-offload", "-nkvo"): _constant("no_kv_offload", value=True),
    ("--mmproj-offload",): _constant("mmproj_use_gpu", value=True),
    ("--no-mmproj-offload",): _constant("mmproj_use_gpu", value=False),
    ("--swa-full",): _constant("swa_full", value=True),
    ("--check-tensors",): _constant("check_tensors", value=True),
    ("--mmap",): _load_mode("MMAP"),
    ("--no-mmap",): _load_mode("NONE"),
    ("--mlock",): _load_mode("MMAP_MLOCK"),
    ("--embeddings", "--embedding"): _constant("embedding", value=True),
    ("--reranking", "--rerank"): _rerank,
    ("--metrics",): _constant("endpoint_metrics", value=True),
    ("--props",): _constant("endpoint_props", value=True),
    ("--slots",): _constant("endpoint_slots", value=True),
    ("--no-slots",): _constant("endpoint_slots", value=False),
    ("--ui", "--webui"): _constant("ui", value=True),
    ("--no-ui", "--no-webui"): _constant("ui", value=False),
    ("--offline",): _constant("offline", value=True),
}

# What the package is linked against and does not bring, and what Debian calls it.
_SYSTEM_LIBRARIES: Final = {"libgomp": "libgomp1", "libstdc++": "libstdc++6"}


def main(arguments: Sequence[str]) -> NoReturn:
    """Serve until a signal ends the process."""
    _take_default_signals()
    try:
        library = importlib.import_module("xllamacpp")
    except ImportError as error:
        remedy = f"{_remedy(str(error))}, or put llama-server on PATH"
        _give_up(1, f"xllamacpp cannot be imported: {error}; {remedy}")
    params = library.CommonParams()
    params.n_parallel = -1  # llama-server's own default: it decides
    try:
        _apply(library, params, arguments)
    except _UsageError as error:
        _give_up(2, str(error))
    try:
        server = library.Server(params)
    except RuntimeError as error:
        _give_up(1, f"the server did not start: {error}")
    while server:
        signal.pause()
    raise SystemExit(1)


def _take_default_signals() -> None:
    """Undo what was inherited: a parent may ignore or block the signals that stop us."""
    stopping = (signal.SIGTERM, signal.SIGINT)
    for number in stopping:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, stopping)


def _remedy(problem: str) -> str:
    for library, package in _SYSTEM_LIBRARIES.items():
        if f"{library}.so" in problem:
            return f"install the system's {library} (Debian, Ubuntu: apt install {package})"
    return "pip install 'moorage[llama]'"


def _give_up(status: int, problem: str) -> NoReturn:
    sys.stderr.write(f"llama_server: {problem}\n")
    raise SystemExit(status)


def _apply(library: Any, params: Any, arguments: Sequence[str]) -> None:
    values = {name: setter for names, setter in _VALUES.items() for name in names}
    flags = {name: setter for names, setter in _FLAGS.items() for name in names}
    rest = iter(arguments)
    for option in rest:
        if option in flags:
            flags[option](library, params, "")
        elif option in values:
            _apply_value(values[option], library, params, option, rest)
        else:
            raise _UsageError(
                f"unknown option {option!r}: this server is the Python package xllamacpp, which "
                "takes the most used options of llama-server; put llama-server on PATH, or name "
                "it as the executable, to use all of them"
            )
    if not params.model.path:
        raise _UsageError("--model is missing")


def _apply_value(
    setter: _Setter, library: Any, params: Any, option: str, rest: Iterator[str]
) -> None:
    text = next(rest, None)
    if text is None:
        raise _UsageError(f"{option} needs a value")
    try:
        setter(library, params, text)
    except (ValueError, OverflowError, OSError) as error:
        raise _UsageError(f"{option} {text!r}: {error}") from None


if __name__ == "__main__":
    main(sys.argv[1:])
