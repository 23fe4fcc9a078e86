"""Models of a hub on loopback, served by the real llama.cpp as a service launches it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backends.serving import Server
from moorage import LoadError, ModelService, ModelSpec
from moorage.compose import Parts
from moorage.core import events as ev
from moorage.hub import HubAccess, HubFetcher
from support import needed
from support.hub import Fault, Hub, Repo, serving
from support.services import LIMIT_S, ports
from support.splitting import split, with_architecture

REPO = "org/model"
PARTS = tuple(f"q4/tiny-0000{n}-of-00003.gguf" for n in (1, 2, 3))


@pytest.fixture
def hub(tiny: Path, tmp_path: Path) -> Iterator[Hub]:
    parts = split(tiny, tmp_path, parts=3, empty_first=True)
    files = dict(zip(PARTS, (part.read_bytes() for part in parts), strict=True))
    files |= {
        "tiny.gguf": tiny.read_bytes(),
        "extra/mmproj.gguf": with_architecture(tiny, "clip"),
        "page.gguf": b"<!DOCTYPE html><title>Sign in</title>",
        "short.gguf": tiny.read_bytes()[:-100],
    }
    with serving() as hub:
        hub.repos[REPO] = Repo(files, large=frozenset(files))
        yield hub


@pytest.fixture
def service(hub: Hub, tmp_path: Path, no_path: Path) -> Iterator[ModelService]:
    cache = str(tmp_path / "cache")
    access = HubAccess(endpoint=hub.endpoint, token=False, cache_dir=cache)
    parts = Parts(fetcher=HubFetcher(access))
    with ModelService.open(tmp_path / "state", ports=ports(), parts=parts) as service:
        yield service


def spec_of(file: str, **fields: Any) -> ModelSpec:
    settings = {"threads": 1, "ctx_size": 512}
    return ModelSpec(
        name="m", backend="llama.cpp", repo=REPO, file=file, settings=settings, **fields
    )


def asking(port: int) -> Server:
    return Server(None, port)  # type: ignore[arg-type]  # its process is the service's


def events(service: ModelService, kind: type[ev.Event]) -> list[Any]:
    return [entry.event for entry in service.events() if isinstance(entry.event, kind)]


@pytest.mark.real
def test_a_split_model_is_fetched_whole_and_served(service: ModelService) -> None:
    needed.package("xllamacpp")
    service.define(spec_of("q4/tiny.gguf"))
    with service.lease("m", timeout_s=LIMIT_S) as lease:
        content = asking(lease.port).complete(8)

    (fetched,) = events(service, ev.RunFetched)
    (launching,) = events(service, ev.RunLaunching)
    assert len(content) == 8
    assert [name for name, _, _ in fetched.files] == list(PARTS)
    assert fetched.path.endswith(PARTS[0])
    assert fetched.path in launching.argv


@pytest.mark.real
def test_a_projector_is_fetched_along_and_reaches_the_server(service: ModelService) -> None:
    needed.package("xllamacpp")
    service.define(spec_of("tiny.gguf", mmproj="extra/mmproj.gguf"))

    with pytest.raises(LoadError) as caught:  # it says that it is one, and has nothing of one
        service.start("m", LIMIT_S)

    (fetched,) = events(service, ev.RunFetched)
    (launching,) = events(service, ev.RunLaunching)
    projector = Path(fetched.path).parent / "extra" / "mmproj.gguf"
    assert [name for name, _, _ in fetched.files] == ["tiny.gguf", "extra/mmproj.gguf"]
    assert launching.argv[launching.argv.index("--mmproj") + 1] == str(projector)
    assert "mmproj" in "\n".join(caught.value.log_tail)


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("page.gguf", "is no GGUF file: it is a web page"),
        ("short.gguf", "is truncated"),
        ("extra/mmproj.gguf", "is a projector; name it as mmproj"),
    ],
)
def test_what_no_server_could_load_is_refused_before_a_launch(
    service: ModelService, file: str, said: str
) -> None:
    service.define(spec_of(file))

    with pytest.raises(LoadError, match=said) as caught:
        service.start("m", LIMIT_S)

    assert caught.value.stage == "prepare"
    assert events(service, ev.RunLaunching) == []
    assert service.status().ports_held == {}


@pytest.mark.parametrize("backend", ["vllm", "sglang"])
@pytest.mark.parametrize("cached", [False, True])
def test_all_that_is_read_of_a_repo_reaches_a_server_as_its_folder(
    hub: Hub, service: ModelService, backend: str, cached: bool
) -> None:
    files = {"config.json": b"{}", "model.safetensors": b"w", "text/vocab.json": b"[]"}
    hub.repos[REPO].files = {**files, "pytorch_model.bin": b"w" * 10}
    if cached:
        service.define(ModelSpec(name="before", backend=backend, repo=REPO, executable="/bin/true"))
        with pytest.raises(LoadError):
            service.start("before", LIMIT_S)
        hub.faults["list"] = Fault(status=503)
    service.define(ModelSpec(name="m", backend=backend, repo=REPO, executable="/bin/true"))

    with pytest.raises(LoadError):  # it ends at once
        service.start("m", LIMIT_S)

    fetched = events(service, ev.RunFetched)[-1]
    launching = events(service, ev.RunLaunching)[-1]
    folder = Path(fetched.path)
    assert launching.argv[2 if backend == "vllm" else 3] == str(folder)
    assert {name for name, _, _ in fetched.files} == set(files)
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors", "text"}


def test_a_part_that_the_repo_has_not_is_named_before_anything_is_fetched(
    hub: Hub, service: ModelService
) -> None:
    del hub.repos[REPO].files[PARTS[1]]
    service.define(spec_of(PARTS[0]))

    with pytest.raises(LoadError, match=f"{PARTS[1]} missing") as caught:
        service.start("m", LIMIT_S)

    assert caught.value.stage == "fetch"
    assert hub.asked["get"] == 0
