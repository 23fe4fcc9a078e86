"""An owner of live servers that is killed while it archives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from moorage import ModelService
from moorage.log.reader import LogReader
from moorage.log.verify import flaws
from support.services import ports

OWNER = """
import os, signal, sys
from pathlib import Path
from moorage import ModelService, Parts
from moorage.log.sqlite import SqliteLog
from support.services import server

folder, step, first = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])

class Log(SqliteLog):
    def archive(self, entry, **options):
        def reached(now):
            if now == step:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().archive(entry, reached=reached)

pool, parts = range(first, first + 9), Parts(log=Log.open(folder))
service = ModelService.open(folder, ports=pool, parts=parts)
service.define(server("a"))
with service.lease("a") as lease:
    print(lease.run, service.model("a").pid, flush=True)
service.pin("a")
service.archive()
"""


@pytest.mark.parametrize("step", ["made plain", "filled", "kept", "replaced", "finished"])
def test_its_server_is_adopted_and_the_log_is_whole(tmp_path: Path, step: str) -> None:
    folder, pool = tmp_path / "state", ports()
    owner = subprocess.run(
        [sys.executable, "-c", OWNER, str(folder), step, str(pool.start)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=40,
        check=False,
    )
    assert owner.returncode == -signal.SIGKILL
    run, pid = map(int, owner.stdout.split())

    with ModelService.open(folder, ports=pool) as service:
        assert service.model("a").pinned
        with service.lease("a") as lease:
            assert (lease.run, service.model("a").pid) == (run, pid)
        assert service.audit() == ()
        service.archive()
    with LogReader(folder) as reader:
        assert list(flaws(reader, refold=True)) == []
        assert len(reader.chain()) == (3 if step in ("replaced", "finished") else 2)
