"""Fakes for the tests of programs that embed Moorage: real decisions, made-up servers.

```python
processes = FakeProcesses()
processes.will("small", Script(exits=ExitStatus(code=1), log=("out of memory",)))
with ModelService.open(tmp_path, parts=fake_parts(processes=processes)) as service:
    ...
```

They pass the same contract tests as the real parts.
"""

from moorage.protocols import ExitStatus, Listener, Readiness
from moorage.testing.clock import FakeAlarm, FakeClock
from moorage.testing.files import FakeBackends, FakeFetcher
from moorage.testing.holds import Hold
from moorage.testing.log import MemoryLog, MemoryStorage
from moorage.testing.parts import fake_parts
from moorage.testing.ports import FakePorts
from moorage.testing.processes import FakeProcesses, FakeServer, Script

__all__ = [
    "ExitStatus",
    "FakeAlarm",
    "FakeBackends",
    "FakeClock",
    "FakeFetcher",
    "FakePorts",
    "FakeProcesses",
    "FakeServer",
    "Hold",
    "Listener",
    "MemoryLog",
    "MemoryStorage",
    "Readiness",
    "Script",
    "fake_parts",
]
