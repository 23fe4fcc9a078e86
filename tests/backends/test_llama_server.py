"""The launcher's options against the library they are put into."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from moorage.backends import llama_server
from support import needed
from support.broken import break_package
from support.services import LIMIT_S

NO_FILE = "cannot open shared object file: No such file or directory"
SAMPLES = ("1", "none", "f16", "on", __file__)
OPTIONS = list(llama_server._VALUES)
FLAGS = list(llama_server._FLAGS)


@pytest.fixture
def library() -> Any:
    needed.package("xllamacpp")
    return importlib.import_module("xllamacpp")


@pytest.mark.parametrize("names", OPTIONS, ids=lambda names: names[0])
def test_an_option_has_its_place_in_the_library(library: Any, names: tuple[str, ...]) -> None:
    def accepted(sample: str) -> bool:
        params = library.CommonParams()
        params.model.path = "x"
        try:
            llama_server._apply(library, params, [names[-1], sample])
        except llama_server._UsageError:
            return False
        return True

    assert any(accepted(sample) for sample in SAMPLES)


@pytest.mark.parametrize("names", FLAGS, ids=lambda names: names[0])
def test_a_flag_has_its_place_in_the_library(library: Any, names: tuple[str, ...]) -> None:
    params = library.CommonParams()
    params.model.path = "x"

    for name in names:
        llama_server._apply(library, params, [name])


def test_values_arrive_where_they_belong(library: Any) -> None:
    params = library.CommonParams()
    arguments = ["--model", "m", "--host", "127.0.0.1", "--port", "18000", "--alias", "a,b"]
    arguments += ["-c", "64", "-t", "2", "-ngl", "auto", "--seed", "-1", "--mmproj", "p"]
    arguments += ["--no-warmup", "--rerank", "-fa", "off", "--api-key", "k,l"]

    llama_server._apply(library, params, arguments)

    assert (params.model.path, params.mmproj.path) == ("m", "p")
    assert (params.hostnames, params.port, params.model_alias) == (["127.0.0.1"], 18000, {"a", "b"})
    assert (params.n_ctx, params.cpuparams.n_threads, params.n_gpu_layers) == (64, 2, -1)
    assert (params.sampling.seed, params.warmup, params.embedding) == (0xFFFFFFFF, False, True)
    assert params.flash_attn_type == library.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    assert params.api_keys == ["k", "l"]


def test_no_name_stands_for_two_options() -> None:
    names = [name for option in (*OPTIONS, *FLAGS) for name in option]

    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (
            ImportError(f"libgomp.so.1: {NO_FILE}"),
            "install the system's libgomp (Debian, Ubuntu: apt install libgomp1)",
        ),
        (
            ImportError("/lib/libstdc++.so.6: version `GLIBCXX_3.4.99' not found"),
            "install the system's libstdc++ (Debian, Ubuntu: apt install libstdc++6)",
        ),
        (ModuleNotFoundError("No module named 'xllamacpp'"), "pip install 'moorage[llama]'"),
    ],
    ids=("libgomp", "libstdc++", "package"),
)
def test_what_keeps_the_package_from_being_imported_is_told_with_a_remedy(
    tmp_path: Path, error: ImportError, remedy: str
) -> None:
    break_package(tmp_path, error)

    ended = subprocess.run(
        [sys.executable, "-P", llama_server.__file__, "--model", "m.gguf"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )

    why = f"xllamacpp cannot be imported: {error}; {remedy}, or put llama-server on PATH"
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == f"llama_server: {why}\n"
