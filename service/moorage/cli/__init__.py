"""The command `moorage`: reads logs offline, on a copy or beside a live service; and the demo."""

from moorage.cli.main import main

__all__ = ["main"]
