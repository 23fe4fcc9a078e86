from __future__ import annotations

from pathlib import Path

import pytest

from cli.making import Ran, Run
from moorage.cli import main
from segments.making import Growing


@pytest.fixture
def growing(tmp_path: Path) -> Growing:
    return Growing(tmp_path / "state")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command in this process."""
    monkeypatch.delenv("MOORAGE_STATE", raising=False)

    def run_it(*arguments: object) -> Ran:
        return Ran(main([str(argument) for argument in arguments]), *capsys.readouterr())

    return run_it
