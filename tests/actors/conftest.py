"""Services on fakes, judged when their test has passed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from actors.bench import Bench

Open = Callable[..., Bench]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Open]:
    """Open services with the options given; each is closed and its log judged at the end."""
    with ExitStack() as stack:

        def open_(**options: Any) -> Bench:
            return stack.enter_context(Bench(tmp_path, **options))

        yield open_
