"""What this machine can do for us."""

from __future__ import annotations

import os
import sys

LINUX = sys.platform.startswith("linux")


def refuse_unsupported(platform: str = sys.platform) -> None:
    """Raise ImportError on systems without sessions, process groups and POSIX signals."""
    if platform in {"win32", "cygwin", "emscripten", "wasi"}:
        raise ImportError(
            f"moorage does not run on {platform}: it needs POSIX sessions and signals; "
            "use Linux, macOS, or Linux under WSL 2"
        )


def has_pidfd() -> bool:
    """Tell whether the kernel hands out pidfds (Linux 5.4; some sandboxes refuse them)."""
    if not hasattr(os, "pidfd_open") or not hasattr(os, "P_PIDFD"):
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True
