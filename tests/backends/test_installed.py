from __future__ import annotations

import sys
from pathlib import Path

import pytest

from moorage.backends import InstalledBackends
from moorage.errors import ConfigurationError
from moorage.spec import ModelSpec

OURS = ("llama.cpp", "vllm", "sglang", "command")

GOOD = """
class Backend:
    name = "good"
    def check(self, spec): pass
    def plan(self, request): raise NotImplementedError
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def install(site: Path, distribution: str, name: str, target: str, code: str | None) -> None:
    """Lay out an installed distribution with one backend; without code, its module is missing."""
    info = site / f"{distribution.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[moorage.backends]\n{name} = {target}\n")
    if code is not None:
        (site / f"{target.partition(':')[0]}.py").write_text(code)


@pytest.mark.parametrize("name", OURS)
def test_ours_are_known_under_their_names(name: str) -> None:
    assert InstalledBackends().get(name).name == name


def test_a_backend_is_made_once() -> None:
    backends = InstalledBackends()

    assert backends.get("command") is backends.get("command")


def test_an_unknown_name_names_the_known_ones_and_the_nearest() -> None:
    with pytest.raises(ConfigurationError) as caught:
        InstalledBackends().get("lama.cpp")

    assert caught.value.subject == "ModelSpec.backend"
    assert "did you mean 'llama.cpp'?" in caught.value.problem
    for name in OURS:
        assert name in caught.value.problem


def test_another_distribution_adds_a_backend(site: Path) -> None:
    install(site, "moorage-good", "good", "good_backend:Backend", GOOD)

    backends = InstalledBackends()

    assert backends.get("good").name == "good"
    assert backends.names() == (*OURS, "good")


@pytest.mark.parametrize(
    ("target", "code", "why"),
    [
        ("gone_backend:Backend", None, "No module named 'gone_backend'"),
        ("bad_backend:Missing", "", "Missing"),
        ("raising_backend:Backend", "raise RuntimeError('at import')", "at import"),
        ("odd_backend:Backend", "Backend = 3", "not callable"),
        ("half_backend:Backend", "class Backend:\n    def check(self, s): pass\n", "has no plan"),
    ],
)
def test_a_broken_one_names_its_distribution_and_hinders_no_other(
    site: Path, target: str, code: str | None, why: str
) -> None:
    install(site, "moorage-broken", "broken", target, code)
    install(site, "moorage-good", "good", "good_backend:Backend", GOOD)
    backends = InstalledBackends()

    with pytest.raises(ConfigurationError) as caught:
        backends.get("broken")

    assert "moorage-broken" in caught.value.problem
    assert why in caught.value.problem
    assert backends.get("good").name == "good"
    assert backends.get("llama.cpp").name == "llama.cpp"
    sys.modules.pop(target.partition(":")[0], None)


def test_two_distributions_that_offer_one_name_are_both_named(site: Path) -> None:
    install(site, "moorage-one", "same", "one_backend:Backend", GOOD)
    install(site, "moorage-two", "same", "two_backend:Backend", GOOD)

    with pytest.raises(ConfigurationError, match="moorage-one and moorage-two"):
        InstalledBackends().get("same")


def test_another_distribution_does_not_replace_ours(site: Path) -> None:
    install(site, "moorage-sly", "command", "sly_backend:Backend", GOOD)

    backend = InstalledBackends().get("command")

    assert type(backend).__module__ == "moorage.backends.command"
    backend.check(ModelSpec(name="m", backend="command", args=["true", "{port}"]))
