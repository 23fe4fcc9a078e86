from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.errors import ConfigurationError
from moorage.spec import ModelSpec, spec_from_data


def spec_of(**fields: Any) -> ModelSpec:
    return ModelSpec(**{"name": "m", "backend": "command", **fields})


def refused(**fields: Any) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        spec_of(**fields)
    return caught.value


# --- names ---


@pytest.mark.parametrize("name", ["a", "0", "Qwen3.8-27b:Q4_K_M", "org@v1+x", "x" * 128])
def test_a_name_that_fits_everywhere_is_taken(name: str) -> None:
    assert spec_of(name=name, aliases=["other"]).names == (name, "other")


@pytest.mark.parametrize(
    "name",
    [
        *(
            "",
            " ",
            "a/b",
            "a\n",
            "\na",
            "a b",
            "../x",
            ".hidden",
            "-flag",
            "x" * 129,
            "naïve",
            "a\0",
        ),
        *(None, 5, b"bytes", ["a"]),
    ],
)
def test_a_name_that_does_not_is_refused_also_as_an_alias(name: Any) -> None:
    assert refused(name=name).subject == "ModelSpec.name"
    assert refused(aliases=[name]).subject == "ModelSpec.aliases"


@pytest.mark.parametrize("aliases", [["m"], ["a", "a"], ["a", "m"]])
def test_a_name_twice_is_refused(aliases: list[str]) -> None:
    assert refused(aliases=aliases).subject == "ModelSpec.aliases"


@pytest.mark.parametrize("field", ["aliases", "args"])
@pytest.mark.parametrize("value", ["text", {"a"}, {"a": 1}, 5, None, (x for x in "a")])
def test_what_is_no_list_is_refused(field: str, value: Any) -> None:
    assert refused(**{field: value}).subject == f"ModelSpec.{field}"


# --- where the model is ---


@pytest.mark.parametrize(
    ("fields", "subject"),
    [
        ({"path": "a", "repo": "o/n"}, "path"),
        ({"file": "x.gguf"}, "file"),
        ({"path": "a", "file": "x.gguf"}, "file"),
        ({"revision": "main"}, "file"),
    ],
)
def test_a_source_that_contradicts_itself_is_refused(fields: dict[str, Any], subject: str) -> None:
    assert refused(**fields).subject == f"ModelSpec.{subject}"


@pytest.mark.parametrize("field", ["path", "executable", "cwd"])
def test_a_path_object_is_as_good_as_its_text(field: str) -> None:
    assert spec_of(**{field: Path("/a/b")}) == spec_of(**{field: "/a/b"})


@pytest.mark.parametrize("field", ["path", "repo", "executable", "cwd"])
@pytest.mark.parametrize("value", ["", "a\0b", 5, b"bytes", ["a"]])
def test_a_text_that_cannot_be_one_is_refused(field: str, value: Any) -> None:
    assert refused(**{field: value}).subject == f"ModelSpec.{field}"


@pytest.mark.parametrize("backend", ["", None, 5, "a\0"])
def test_a_backend_that_is_not_named_is_refused(backend: Any) -> None:
    assert refused(backend=backend).subject == "ModelSpec.backend"


# --- settings, arguments, environment ---


def test_settings_arguments_and_environment_are_copied() -> None:
    settings, args, env = {"a": 1}, ["x"], {"A": "1"}
    spec = spec_of(settings=settings, args=args, env=env)
    settings["a"], args[0], env["A"] = 2, "y", "2"

    assert (spec.settings, spec.args, spec.env) == ({"a": 1}, ("x",), {"A": "1"})


@pytest.mark.parametrize("key", ["", "-a", "--ctx-size", "a b", "a=b", "a\n", 5, None])
def test_a_setting_that_is_no_option_name_is_refused(key: Any) -> None:
    assert refused(settings={key: 1}).subject == "ModelSpec.settings"


@pytest.mark.parametrize("value", [None, {"a": 1}, {1}, [None], [["a"]], "a\0", ["\0"], math.nan])
def test_a_setting_that_is_no_option_value_is_refused(value: Any) -> None:
    assert refused(settings={"a": value}).subject == "ModelSpec.settings"


@pytest.mark.parametrize("field", ["settings", "env", "secrets"])
@pytest.mark.parametrize("value", [None, "a=b", ["a"], 5])
def test_what_is_no_mapping_is_refused(field: str, value: Any) -> None:
    assert refused(**{field: value}).subject == f"ModelSpec.{field}"


@pytest.mark.parametrize("value", [5, None, b"x", "a\0b"])
def test_an_argument_that_is_no_text_is_refused(value: Any) -> None:
    assert refused(args=["ok", value]).subject == "ModelSpec.args[1]"


@pytest.mark.parametrize("field", ["env", "secrets"])
@pytest.mark.parametrize("key", ["", "1A", "A=B", "A B", "A\0", "A\n", 5])
def test_a_name_that_no_variable_can_have_is_refused(field: str, key: Any) -> None:
    assert refused(**{field: {key: "x"}}).subject.startswith("ModelSpec.env")


@pytest.mark.parametrize("value", [5, None, "a\0b"])
def test_a_value_that_no_variable_can_have_is_refused(value: Any) -> None:
    assert refused(env={"A": value}).subject == "ModelSpec.env['A']"


def test_a_variable_that_is_both_open_and_secret_is_refused() -> None:
    error = refused(env={"KEY": "open"}, secrets={"KEY": "hidden"})

    assert "KEY is in env too" in error.problem


@pytest.mark.parametrize("value", ["", "health", "http://x/health", "/a b", "/a\r\nX: y", 5])
def test_a_health_path_that_is_no_path_is_refused(value: Any) -> None:
    assert refused(health_path=value).subject == "ModelSpec.health_path"


# --- numbers and choices ---


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("load_timeout_s", [0, -1, 10**400, math.inf, math.nan, "5", None, True, 1e9]),
        ("stop_timeout_s", [-0.1, math.inf, math.nan, "5", None, True, 1e9]),
        ("ttl_s", [-1, math.inf, math.nan, "5", True]),
        ("memory", [0, -1, 1.5, "1", True, 1 << 61, 10**400]),
        ("ports", [0, -1, 65, 1.0, None, True]),
        ("crash_budget", [0, -1, 1.5, None, True]),
        ("pinned", [0, 1, None, "yes"]),
        ("owner_check", [0, 1, None, "yes"]),
        ("inherit_env", [0, 1, None, "yes"]),
        ("restart", ["never", "", None, 5, []]),
    ],
)
def test_a_value_out_of_its_bounds_is_refused(field: str, values: list[Any]) -> None:
    for value in values:
        assert refused(**{field: value}).subject == f"ModelSpec.{field}", value


def test_the_bounds_themselves_are_taken() -> None:
    spec = spec_of(load_timeout_s=0.001, stop_timeout_s=0, ttl_s=0, memory=1, ports=64)

    assert (spec.load_timeout_s, spec.stop_timeout_s, spec.ttl_s) == (0.001, 0, 0)


def test_an_unknown_field_is_refused_by_python_and_from_data() -> None:
    with pytest.raises(TypeError):
        spec_of(colour="red")
    with pytest.raises(ConfigurationError, match="colour"):
        spec_from_data({**spec_of().to_data(), "colour": "red"})


# --- secrets ---


def test_a_secret_is_in_no_representation() -> None:
    spec = spec_of(secrets={"HF_TOKEN": "hush-hush"})

    shown = (repr(spec), str(spec), json.dumps(spec.to_data()), spec.launch_hash())
    assert all("hush-hush" not in text for text in shown)
    assert spec.to_data()["secret_names"] == ["HF_TOKEN"]


@pytest.mark.parametrize("value", [b"hush-hush", "hush-hush\0"])
def test_a_secret_is_not_in_the_error_that_refuses_it(value: Any) -> None:
    assert "hush-hush" not in str(refused(secrets={"HF_TOKEN": value}))


# --- data and hash ---


def test_changing_what_launches_changes_the_hash_and_nothing_else_does() -> None:
    before = spec_of().launch_hash()

    kept = [{"aliases": ["a"]}, {"pinned": True}, {"ttl_s": 5}, {"crash_budget": 2}]
    changed = [{"path": "x"}, {"settings": {"a": 1}}, {"args": ["x"]}, {"env": {"A": "1"}}]
    assert {spec_of(**fields).launch_hash() for fields in kept} == {before}
    assert before not in {spec_of(**fields).launch_hash() for fields in changed}


SETTING = st.one_of(
    st.booleans(),
    st.integers(-(1 << 63) + 1, (1 << 63) - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
)


@given(
    settings=st.dictionaries(st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True), SETTING),
    listed=st.lists(SETTING, max_size=3),
    secrets=st.dictionaries(st.from_regex(r"[A-Z]{1,8}", fullmatch=True), st.just("hidden")),
)
def test_a_spec_survives_the_log(
    settings: dict[str, Any], listed: list[Any], secrets: dict[str, str]
) -> None:
    spec = spec_of(settings={**settings, "listed": listed}, secrets=secrets, aliases=["a"])

    data = json.loads(json.dumps(spec.to_data()))
    assert spec_from_data(data, secrets) == spec
    assert spec_from_data(data, secrets).launch_hash() == spec.launch_hash()


# --- projectors, which older logs know nothing of ---


def test_a_spec_without_a_projector_is_written_and_hashed_as_before_there_were_any() -> None:
    spec = ModelSpec(name="m", backend="llama.cpp", path="/x")
    of_a_repo = ModelSpec(
        name="m",
        backend="llama.cpp",
        repo="org/name",
        file="x.gguf",
        aliases=["a"],
        settings={"ctx_size": 5},
    )

    assert "mmproj" not in spec.to_data()
    assert (spec.launch_hash(), of_a_repo.launch_hash()) == ("812aa4d5abd889f4", "d42bab5d1483563a")
    assert spec_from_data(spec.to_data()) == spec


def test_a_projector_is_kept_and_changes_what_is_launched() -> None:
    spec = ModelSpec(name="m", backend="llama.cpp", path="/x", mmproj=Path("/y"))  # type: ignore[arg-type]

    assert spec.mmproj == "/y"
    assert spec_from_data(json.loads(json.dumps(spec.to_data()))) == spec
    assert spec.launch_hash() != "812aa4d5abd889f4"


@pytest.mark.parametrize("fields", [{}, {"repo": "o/n"}])
def test_a_projector_without_a_model_file_is_refused(fields: dict[str, Any]) -> None:
    assert refused(mmproj="mmproj.gguf", **fields).subject == "ModelSpec.mmproj"
