"""The command lines of the llama.cpp backend, run: xllamacpp by our launcher, and the binary."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

import pytest

from backends import serving
from moorage import ModelService, ModelSpec
from moorage.backends import llama
from moorage.gguf import write_tiny
from moorage.world.ports import LocalPorts
from support import needed
from support.services import check_log, ports, state_of

pytestmark = pytest.mark.real

LAUNCHER = Path(llama.__file__).with_name("llama_server.py")
ONE_THREAD = {"threads": 1, "ctx_size": 512}


@pytest.fixture(params=["xllamacpp", "binary"])
def server_kind(request: pytest.FixtureRequest, no_path: Path) -> dict[str, Any]:
    """Fields of a spec that choose the server, for the tiny model, whose weights are floats."""
    return fields_of(request.param, flags={"avx512f", "avx512bw", "avx512dq", "avx512vl"})


@pytest.fixture(params=["xllamacpp", "binary"])
def any_model_server(request: pytest.FixtureRequest, no_path: Path) -> dict[str, Any]:
    """Fields of a spec that choose a server that can load every quantization here."""
    return fields_of(request.param, flags=llama._BINARY_NEEDS)


def fields_of(kind: str, flags: Set[str]) -> dict[str, Any]:
    needed.llama_server(kind, flags)
    return {} if kind == "xllamacpp" else {"executable": str(needed.binary())}


@pytest.fixture
def long_model(tmp_path: Path) -> Path:
    path = tmp_path / "long.gguf"
    write_tiny(path, ctx=131_072)
    return path


@contextlib.contextmanager
def running(model: Path, tmp_path: Path, **fields: Any) -> Iterator[serving.Server]:
    port = serving.free_port()
    fields = {"settings": ONE_THREAD, **fields}
    plan = serving.plan_of(model, port, **fields)
    with serving.serving(plan, port, tmp_path / "server.log") as server:
        yield server


@contextlib.contextmanager
def request_in_flight(server: serving.Server) -> Iterator[None]:
    """Have a request that runs for minutes."""

    def ask() -> None:
        with contextlib.suppress(OSError, serving.http.client.HTTPException):
            server.complete(120_000)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        while not server.busy():
            assert thread.is_alive()
        yield
    finally:
        server.process.kill()
        thread.join(serving.LIMIT_S)


def test_it_becomes_ready_answers_and_stops(
    tiny: Path, tmp_path: Path, server_kind: dict[str, Any]
) -> None:
    with running(tiny, tmp_path, **server_kind) as server:
        answer = server.complete(8)
        stopped_s = server.stop((signal.SIGTERM,))

        assert len(answer) == 8
        assert stopped_s < 2


def test_it_knows_the_model_by_its_name(
    tiny: Path, tmp_path: Path, server_kind: dict[str, Any]
) -> None:
    with running(tiny, tmp_path, **server_kind) as server:
        _, listed = server.ask("/v1/models")
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        status, chat = server.ask("/v1/chat/completions", body)

        assert [model["id"] for model in listed["data"]] == ["m"]
        assert status == 200
        assert chat["usage"]["completion_tokens"] == 4


def test_the_declared_signals_end_it_with_a_request_in_flight(
    long_model: Path, tmp_path: Path, server_kind: dict[str, Any]
) -> None:
    port = serving.free_port()
    settings = {"threads": 1, "ctx_size": 131_072}
    plan = serving.plan_of(long_model, port, settings=settings, stop_timeout_s=0.4, **server_kind)
    with (
        serving.serving(plan, port, tmp_path / "server.log") as server,
        request_in_flight(server),
    ):
        for step in plan.stop_signals:
            server.process.send_signal(step.number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.process.wait(step.wait_s or 0.001)

        assert server.process.wait(serving.LIMIT_S) in {1, -signal.SIGTERM}


def test_our_launcher_stops_at_the_first_signal_with_a_request_in_flight(
    long_model: Path, tmp_path: Path, no_path: Path
) -> None:
    settings = {"threads": 1, "ctx_size": 131_072}
    with (
        running(long_model, tmp_path, settings=settings) as server,
        request_in_flight(server),
    ):
        stopped_s = server.stop((signal.SIGTERM,))

        assert stopped_s < 2


def test_our_launcher_stops_though_its_parent_blocks_and_ignores_the_signal(
    tiny: Path, tmp_path: Path, no_path: Path
) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        with running(tiny, tmp_path) as server:
            stopped_s = server.stop((signal.SIGTERM,))

            assert stopped_s < 2
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("flash_attn", "off"),
        ("cache_type_k", "f32"),
        ("parallel", 2),
        ("n_gpu_layers", 0),
        ("batch_size", 64),
        ("seed", -1),
        ("temp", 0.1),
        ("no_mmap", True),
        ("no_warmup", True),
        ("embeddings", True),
        ("pooling", "mean"),
        ("reasoning_format", "deepseek-legacy"),
        ("metrics", True),
        ("split_mode", "layer"),
        ("api_key", "secret"),
    ],
)
def test_our_launcher_takes_what_the_binary_takes(
    tiny: Path, tmp_path: Path, server_kind: dict[str, Any], setting: str, value: Any
) -> None:
    with running(tiny, tmp_path, settings={**ONE_THREAD, setting: value}, **server_kind) as server:
        assert server.ask("/health")[0] == 200


def test_our_launcher_serves_under_the_slots_it_is_given(
    tiny: Path, tmp_path: Path, no_path: Path
) -> None:
    with running(tiny, tmp_path, settings={**ONE_THREAD, "parallel": 3}) as server:
        assert len(server.ask("/slots")[1]) == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "m.gguf", "--no-such"], "unknown option '--no-such'"),
        (["--model"], "--model needs a value"),
        ([], "--model is missing"),
        (["--model", "m.gguf", "--ctx-size", "many"], "--ctx-size 'many'"),
        (["--model", "m.gguf", "--ctx-size", "99999999999"], "--ctx-size '99999999999'"),
        (["--model", "m.gguf", "--flash-attn", "maybe"], "none of on, off, auto"),
        (["--model", "m.gguf", "--cache-type-k", "i8"], "none of f32, f16"),
        (["--model", "m.gguf", "--chat-template-file", "/none"], "No such file"),
    ],
)
def test_our_launcher_refuses_what_it_cannot_use(arguments: list[str], said: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-P", str(LAUNCHER), *arguments],
        capture_output=True,
        text=True,
        timeout=serving.LIMIT_S,
        check=False,
    )

    assert ended.returncode == 2
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


def test_our_launcher_says_when_the_model_cannot_be_loaded(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-P", str(LAUNCHER), "--model", str(tmp_path / "none.gguf")],
        capture_output=True,
        text=True,
        timeout=serving.LIMIT_S,
        check=False,
    )

    assert ended.returncode == 1
    assert "the server did not start" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_our_launcher_imports_nothing_of_ours() -> None:
    code = (
        "import runpy, sys; runpy.run_path(sys.argv[1]); "
        "print(sorted(name for name in sys.modules if name.startswith('moorage')))"
    )
    ended = subprocess.run(
        [sys.executable, "-P", "-c", code, str(LAUNCHER)],
        capture_output=True,
        text=True,
        timeout=serving.LIMIT_S,
        check=True,
    )

    assert ended.stdout.strip() == "[]"


def test_a_real_chat_model_answers_a_question(
    chat_model: Path, tmp_path: Path, any_model_server: dict[str, Any]
) -> None:
    """From the definition of the model to a log that says that nothing is held."""
    question = "What is the capital of France? Answer with one word."
    body = {
        "messages": [{"role": "user", "content": question}],
        "max_tokens": 24,
        "temperature": 0,
    }
    settings = {"ctx_size": 1024, "threads": 2}
    spec = ModelSpec(
        name="m", backend="llama.cpp", path=str(chat_model), settings=settings, **any_model_server
    )
    pool, folder = ports(), tmp_path / "state"
    with ModelService.open(folder, ports=pool) as service:
        service.define(spec)
        with service.lease("m", timeout_s=serving.LIMIT_S) as lease:
            status, answer = serving.ask(lease.port, "/v1/chat/completions", body)
        released = service.model("m")
    closed = state_of(service)
    kinds = [entry.event.kind for entry in check_log(folder, closed)]

    assert status == 200
    assert "Paris" in answer["choices"][0]["message"]["content"]
    assert (released.state, released.leases) == ("ready", 0)
    assert [kinds.count(kind) for kind in ("run.ready", "run.released")] == [1, 1]
    assert (closed.runs, closed.held) == ({}, {})
    assert [port for port in pool if LocalPorts().stranger(port)] == []
