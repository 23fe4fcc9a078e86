"""The command `moorage`: reads logs offline, on a copy or beside a live service; and the demo."""

import sys
from collections.abc import Sequence

from moorage.protocols import Flag

_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None, *, stop: Flag | None = None) -> int:
    """Run one command and return its exit status, see `running.main`.

    The rest is imported here: most of a short command's time goes into that, and Ctrl-C meanwhile
    has to end as quietly as later.
    """
    try:
        from moorage.cli.running import main as run  # noqa: PLC0415
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return _INTERRUPTED
    return run(arguments, stop=stop)


__all__ = ["main"]
