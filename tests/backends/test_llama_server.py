"""The launcher's options against the library they are put into."""

from __future__ import annotations

from typing import Any

import pytest

from moorage.backends import llama_server

SAMPLES = ("1", "none", "f16", "on", __file__)
OPTIONS = list(llama_server._VALUES)
FLAGS = list(llama_server._FLAGS)


@pytest.fixture
def library() -> Any:
    return pytest.importorskip("xllamacpp")


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
