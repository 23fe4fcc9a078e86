from __future__ import annotations

from pathlib import Path

import pytest

from cli.making import Filler, Ran, Run
from moorage.cli import demo, main
from moorage.protocols import Flag
from support.services import ports


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command in this process, a demo on ports that no other test process takes."""
    monkeypatch.delenv("MOORAGE_STATE", raising=False)
    monkeypatch.setattr(demo, "DEFAULT_PORTS", ports())

    def run_it(*arguments: object, stop: Flag | None = None) -> Ran:
        status = main([str(argument) for argument in arguments], stop=stop)
        return Ran(status, *capsys.readouterr())

    return run_it


@pytest.fixture
def filler(tmp_path: Path) -> Filler:
    """An opened service's log with one model `owl`, alias `night`."""
    filler = Filler(tmp_path / "state")
    filler.open()
    filler.define("owl", "night")
    return filler
