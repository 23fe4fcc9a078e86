"""Models in parts: what is refused before a launch, and what a real server makes of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from backends import serving
from backends.test_real_servers import ONE_THREAD, fields_of
from moorage.backends.llama import LlamaCpp
from moorage.errors import ConfigurationError
from moorage.gguf import check_gguf, parts_of, write_tiny
from moorage.protocols import LaunchFailedError, LaunchPlan, PlanRequest
from moorage.spec import ModelSpec
from support.splitting import split, with_architecture

GREEDY = {**ONE_THREAD, "temp": 0}
FIRST, SECOND, THIRD = (f"tiny-0000{n}-of-00003.gguf" for n in (1, 2, 3))


@pytest.fixture
def parts(tiny: Path, tmp_path: Path) -> list[Path]:
    folder = tmp_path / "model"
    folder.mkdir()
    return split(tiny, folder, parts=3)


def spec_of(path: Path, **fields: Any) -> ModelSpec:
    fields = {"executable": "/bin/true", **fields}
    return ModelSpec(name="m", backend="llama.cpp", path=str(path), **fields)


def plan(spec: ModelSpec, path: str | None = None) -> LaunchPlan:
    request = PlanRequest(spec=spec, path=path or spec.path, host="127.0.0.1", ports=(18000,))
    return LlamaCpp().plan(request)


def given(plan: LaunchPlan, option: str) -> str:
    return plan.argv[plan.argv.index(option) + 1]


def refused(path: Path) -> str:
    """Return why it is refused when it is defined; the launch refuses it in the same words."""
    with pytest.raises(ConfigurationError) as caught:
        LlamaCpp().check(spec_of(path))
    with pytest.raises(LaunchFailedError) as again:
        plan(spec_of(path))

    assert caught.value.problem == again.value.problem
    return caught.value.problem


def test_the_parts_say_what_they_are(parts: list[Path]) -> None:
    found = [check_gguf(path) for path in parts]

    assert [each.part for each in found] == [0, 1, 2]
    assert {each.parts for each in found} == {3}
    assert [path.name for path in parts] == list(parts_of(SECOND))


@pytest.mark.parametrize("number", [0, 1, 2])
def test_whichever_part_is_named_the_server_is_given_the_first(
    parts: list[Path], number: int
) -> None:
    LlamaCpp().check(spec_of(parts[number]))

    assert given(plan(spec_of(parts[number])), "--model") == str(parts[0])


def test_a_relative_part_is_made_absolute(
    parts: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(parts[0].parent)

    assert given(plan(spec_of(Path(THIRD))), "--model") == str(parts[0])


def test_missing_parts_are_named(parts: list[Path]) -> None:
    parts[1].unlink()

    assert refused(parts[0]) == (
        f"{parts[0]} is a part of 3; {SECOND} missing beside it; fetch them into the same folder"
    )
    parts[0].unlink()
    assert f"{FIRST}, {SECOND} missing" in refused(parts[2])


def test_many_missing_parts_are_named_in_a_line(tiny: Path, tmp_path: Path) -> None:
    whole = split(tiny, tmp_path, parts=12)
    for path in whole[1:]:
        path.unlink()

    assert "tiny-00006-of-00012.gguf and 6 more missing" in refused(whole[0])


def test_a_part_that_is_cut_is_refused_by_its_name(parts: list[Path]) -> None:
    os.truncate(parts[2], parts[2].stat().st_size - 1)

    assert f"{parts[2]} is truncated" in refused(parts[0])


def test_a_part_under_another_ones_name_is_refused(parts: list[Path]) -> None:
    parts[1].write_bytes(parts[2].read_bytes())

    assert f"{parts[1]} is part 3 of 3, not what its name says" in refused(parts[0])


def test_a_part_under_a_name_that_is_none_of_a_part_is_refused(parts: list[Path]) -> None:
    path = parts[0].rename(parts[0].with_name("model.gguf"))

    assert "part 1 of 3 of a model; its name has to end in -00001-of-00003.gguf" in refused(path)


def test_a_whole_model_may_be_called_like_a_part(tiny: Path) -> None:
    path = tiny.rename(tiny.with_name("tiny-00001-of-00002.gguf"))

    assert given(plan(spec_of(path)), "--model") == str(path)


@pytest.mark.parametrize("name", ["a-00000-of-00002.gguf", "a-00003-of-00002.gguf", "a.gguf", ""])
def test_what_is_named_like_no_part_has_none(name: str) -> None:
    assert parts_of(name) == ()


# --- projectors ---


@pytest.fixture
def projector(tiny: Path) -> Path:
    path = tiny.with_name("mmproj-F16.gguf")
    path.write_bytes(with_architecture(tiny, "clip"))
    return path


def test_a_projector_is_passed_on_beside_its_model(tiny: Path, projector: Path) -> None:
    spec = spec_of(tiny, mmproj=projector, settings={"ctx_size": 5})
    LlamaCpp().check(spec)

    made = plan(spec)

    assert given(made, "--model") == str(tiny)
    assert given(made, "--mmproj") == str(projector)
    assert made.argv[-2:] == ("--ctx-size", "5")


@pytest.mark.parametrize("file", ["tiny.gguf", "q4/tiny.gguf", "a/b/tiny.gguf"])
def test_a_projector_of_a_repo_lies_where_the_repo_has_it(
    tiny: Path, projector: Path, tmp_path: Path, file: str
) -> None:
    model = tmp_path / "snapshot" / file
    model.parent.mkdir(parents=True)
    model.write_bytes(tiny.read_bytes())
    beside = tmp_path / "snapshot" / "extra" / "mmproj.gguf"
    beside.parent.mkdir()
    beside.symlink_to(projector)
    spec = ModelSpec(
        name="m",
        backend="llama.cpp",
        executable="/bin/true",
        repo="org/name",
        file=file,
        mmproj="extra/mmproj.gguf",
    )
    LlamaCpp().check(spec)

    assert given(plan(spec, str(model)), "--mmproj") == str(beside)


def test_a_projector_in_a_models_place_is_refused(projector: Path) -> None:
    assert refused(projector) == f"{projector} is a projector; name it as mmproj, beside its model"


@pytest.mark.parametrize("content", [None, b"<html>"])
def test_a_projector_that_is_none_is_refused(
    tiny: Path, tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "mmproj.gguf"
    if content is not None:
        path.write_bytes(content)
    spec = spec_of(tiny, mmproj=path)

    with pytest.raises(ConfigurationError, match=r"ModelSpec\.mmproj: .*mmproj\.gguf"):
        LlamaCpp().check(spec)
    with pytest.raises(LaunchFailedError, match=r"mmproj\.gguf"):
        plan(spec)


@pytest.mark.parametrize("option", ["mmproj", "mm", "no_mmproj", "mmproj_url"])
def test_a_projector_is_named_once(tiny: Path, projector: Path, option: str) -> None:
    argument = f"--{option}" if len(option) > 2 else f"-{option}"

    with pytest.raises(ConfigurationError, match="is given by Moorage"):
        LlamaCpp().check(spec_of(tiny, mmproj=projector, args=[argument, "x"]))
    LlamaCpp().check(spec_of(tiny, args=[argument, "x"]))


# --- a real server ---


@pytest.fixture(params=["xllamacpp", "binary"])
def real_server(request: pytest.FixtureRequest, no_path: Path) -> dict[str, Any]:
    return fields_of(request.param, flags={"avx512f", "avx512bw", "avx512dq", "avx512vl"})


@pytest.mark.real
@pytest.mark.parametrize("empty_first", [False, True])
def test_a_real_server_loads_the_parts_of_a_snapshot_by_its_links(
    tiny: Path, tmp_path: Path, real_server: dict[str, Any], empty_first: bool
) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "commit" / "Q4"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for number, part in enumerate(split(tiny, tmp_path, parts=3, empty_first=empty_first)):
        blob = part.rename(blobs / (str(number) * 64))
        (snapshot / part.name).symlink_to(Path("../../../blobs") / blob.name)
    port = serving.free_port()
    made = serving.plan_of(snapshot / SECOND, port, settings=GREEDY, **real_server)
    with serving.serving(made, port, tmp_path / "server.log") as server:
        in_parts = server.complete(8)
    made = serving.plan_of(tiny, port, settings=GREEDY, **real_server)
    with serving.serving(made, port, tmp_path / "server.log") as server:
        whole = server.complete(8)

    assert len(whole) == 8
    assert in_parts == whole


def test_the_tiny_model_comes_back_whole_from_what_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    write_tiny(path)

    (one,) = split(path, tmp_path, parts=1)

    assert check_gguf(one).architecture == "llama"
    assert one.stat().st_size - path.stat().st_size in range(200)
