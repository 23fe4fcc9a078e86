"""What a machine lacks skips a test, and fails it where CI is told of by the environment."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from moorage.backends.llama import cpu_flags
from support import needed

LACKING = pytest.mark.parametrize(
    "need",
    [
        pytest.param(lambda: needed.package("no_such_package"), id="package"),
        pytest.param(lambda: needed.command("no-such-command", "no-such"), id="command"),
    ],
)


@LACKING
def test_what_is_not_installed_skips_a_test_and_says_what(
    need: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)

    with pytest.raises(pytest.skip.Exception, match=r"no.such.* is not installed"):
        need()


@LACKING
def test_what_is_not_installed_fails_a_test_in_ci(
    need: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")

    with pytest.raises(pytest.fail.Exception, match=r"no.such.* is not installed"):
        need()


def test_a_processor_that_lacks_something_skips_a_test_in_ci_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CI", "true")
    monkeypatch.setattr(needed, "binary", lambda: None)

    with pytest.raises(pytest.skip.Exception, match="this processor lacks no_such_flag"):
        needed.llama_server("binary", cpu_flags() | {"no_such_flag"})
