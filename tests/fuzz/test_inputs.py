"""What else comes from outside: specs, the environment of processes, output of servers."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fuzz import bending, bounds
from fuzz.seeds import seeds
from fuzz.test_databases import chances
from moorage import ModelService
from moorage.backends import InstalledBackends
from moorage.errors import ConfigurationError
from moorage.protocols import LaunchFailedError, PlanRequest
from moorage.spec import ModelSpec, spec_from_data
from moorage.world.processes import LocalProcesses
from moorage.world.procfs import parse_chain
from support.examples import NAMES, SHARES, Share

LIMIT_S = 30
BACKENDS = ("llama.cpp", "vllm", "sglang", "command")
FULL = ModelSpec(
    name="m",
    backend="command",
    repo="o/n",
    file="f.gguf",
    revision="main",
    executable="server",
    settings={"ctx_size": 2048, "flag": True, "list": ["a", 1, 2.5]},
    args=("--port", "{port}"),
    env={"A": "1"},
    secrets={"KEY": "a long secret value"},
    cwd="/tmp",
    aliases=("other",),
    ttl_s=60.0,
    memory=1 << 30,
    ports=2,
    health_path="/health",
    health_interval_s=5.0,
)
FIELDS = tuple(FULL.__dataclass_fields__)
HUGE = 10**5000
values = st.one_of(
    st.sampled_from(bending.ODD_TEXTS),
    st.sampled_from(bending.ODD_NUMBERS),
    st.sampled_from((*bending.ODD_VALUES, HUGE, [HUGE], {"a": HUGE}, {1: 2}, {"A": None}, b"x")),
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=8), inner),
        max_leaves=6,
    ),
)


def usable(spec: ModelSpec, *, with_secrets: bool = True) -> None:
    """A spec that was taken can be stored, read back and hashed."""
    text = json.dumps(spec.to_data(), allow_nan=False)
    again = spec_from_data(json.loads(text), spec.secrets if with_secrets else None)

    assert again == spec
    assert again.launch_hash() == spec.launch_hash()


@pytest.mark.parametrize("share", SHARES, ids=NAMES)
def test_a_spec_of_odd_values_is_refused_or_can_be_stored(share: Share) -> None:
    known = {name: getattr(FULL, name) for name in FIELDS}

    @share.of(300)
    @given(changes=st.dictionaries(st.sampled_from(FIELDS), values, max_size=3))
    @example(changes={"settings": {"a": HUGE}})
    @example(changes={"memory": HUGE})
    @example(changes={"ttl_s": HUGE})
    @example(changes={"name": HUGE})
    @example(changes={"args": [HUGE]})
    @example(changes={"env": {1: "x"}})
    @example(changes={"secrets": {1: "x"}})
    @example(changes={"backend": []})
    @example(changes={"env": {HUGE: "x"}})
    @example(changes={"settings": {HUGE: "x"}})
    def check(changes: dict[str, Any]) -> None:
        with contextlib.suppress(ConfigurationError):
            usable(ModelSpec(**(known | changes)))


@pytest.mark.parametrize("share", SHARES, ids=NAMES)
def test_stored_data_of_a_spec_is_refused_or_gives_one(share: Share) -> None:
    data = FULL.to_data()

    @share.of(300)
    @given(chance=chances)
    def check(chance: Random) -> None:
        bent = bending.bent_json(data, chance)
        if isinstance(bent, dict):
            with contextlib.suppress(ConfigurationError):
                usable(spec_from_data(bent))

    with pytest.raises(ConfigurationError):
        spec_from_data({})


@pytest.mark.parametrize("share", SHARES, ids=NAMES)
def test_a_backend_plans_or_refuses_whatever_a_spec_says(share: Share, tmp_path: Path) -> None:
    known = {name: getattr(FULL, name) for name in FIELDS}
    (tmp_path / "file.gguf").write_bytes(b"GGUF\3\0\0\0")
    places = ("/dev/zero", "/dev/null", str(tmp_path), str(tmp_path / "file.gguf"))

    @share.of(100)
    @given(
        changes=st.dictionaries(st.sampled_from(FIELDS), values, max_size=2),
        backend=st.sampled_from(BACKENDS),
        path=st.none() | st.sampled_from(places) | st.sampled_from(bending.ODD_TEXTS),
    )
    def check(changes: dict[str, Any], backend: str, path: str | None) -> None:
        repo = {"path": path, "repo": None, "file": None, "revision": None} if path else {}
        with contextlib.suppress(ConfigurationError, LaunchFailedError), bounds.in_time():
            spec = ModelSpec(**(known | changes | {"backend": backend, **repo}))
            found = InstalledBackends().get(backend)
            found.check(spec)
            found.plan(PlanRequest(spec=spec, path=path, host="127.0.0.1", ports=(18_000, 18_001)))


@pytest.mark.parametrize(
    "options",
    [
        *({name: HUGE} for name in ("max_loaded", "memory_limit", "min_residency_s", "wait_s")),
        *({"ports": ports} for ports in (HUGE, [HUGE], [1, HUGE])),
    ],
)
def test_a_number_with_thousands_of_digits_is_refused_as_any_other(
    options: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError):
        ModelService.open(tmp_path / "state", **options)


# --- MOORAGE_RUN ----------------------------------------------------------------------------------

TOKENS = ("", ",", "::", "a:b:c", "0" * 16 + ":1:n", "x" * 5000, ",".join(["0" * 16] * 500))


@pytest.mark.parametrize("share", SHARES, ids=NAMES)
def test_any_environment_is_read(share: Share) -> None:
    @share.of(200)
    @given(value=st.binary(), more=st.binary())
    def check(value: bytes, more: bytes) -> None:
        found = parse_chain(b"A=1\0MOORAGE_RUN=" + value + b"\0" + more)
        assert all(isinstance(token, str) for token in found)


@pytest.fixture
def bystander(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    """A process with an odd MOORAGE_RUN that waits until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environb, b"MOORAGE_RUN": request.param},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    yield process
    process.communicate(timeout=LIMIT_S)


LOG = "0123456789abcdef"
ODD_TOKENS = [
    *(b"", b",", b"::", b"\xff\xfe", b"x" * 5000, LOG.encode(), LOG.encode() + b":"),
    *(f"{LOG}:{run}:{nonce}".encode() for run in ("", "x", "-1", "²", "9" * 5000) for nonce in "n"),
    *(f"{LOG}:1".encode(), f"{LOG}:1:".encode(), f"{LOG}:1:a:b".encode(), f",{LOG}:1:n,,".encode()),
]


@pytest.mark.parametrize("bystander", ODD_TOKENS, indirect=True)
def test_a_process_with_an_odd_token_hinders_nobody_and_lives_on(
    bystander: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    state = seeds()[1].put(tmp_path / "state")
    with closing(LocalProcesses()) as processes:
        processes.find(LOG)

    answer = bounds.run("audit", "--state", state)

    assert answer.status in (0, 1)
    assert bystander.poll() is None


# --- output of servers ----------------------------------------------------------------------------


@pytest.mark.parametrize("share", SHARES, ids=NAMES)
def test_any_output_of_a_server_is_shown_harmlessly(share: Share, tmp_path: Path) -> None:
    state = seeds()[2].put(tmp_path / "state")
    launched = bounds.run("events", "--json", "--kind", "run.launching", "--state", state)
    named = [json.loads(line)["data"]["log_file"] for line in launched.out.splitlines()]
    output = state / "logs" / "a" / Path(named[-1]).name

    @share.of(10)
    @given(data=st.binary() | st.text().map(lambda text: text.encode(errors="surrogatepass")))
    @example(data=b"\x1b]0;title\x07\x1b[2J\r\r\n\xff\x00")
    @example(data=b"x" * 1_500_000)
    @example(data=b"\n" * 10_000)
    def check(data: bytes) -> None:
        for path in (state / "logs").rglob("*"):
            if path.is_file():
                path.unlink()
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_bytes(data)
        for more in ((), ("--json",), ("-f",), ("--lines", "0"), ("--lines", "9999999")):
            answer = bounds.run("logs", "a", *more, "--state", state)
            assert all(line.isprintable() for line in answer.out.splitlines())
