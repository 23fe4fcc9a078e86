"""`moorage db`: the revision of a log's schema."""

from __future__ import annotations

import argparse
from pathlib import Path

from moorage.cli import source
from moorage.cli.console import Console
from moorage.errors import StateError
from moorage.log import migrate
from moorage.log.files import StateFiles


def run_current(options: argparse.Namespace, console: Console) -> int:
    """Tell the revision. A schema that needs an upgrade is a finding."""
    found, head = migrate.current(source.place(options.state))
    console.object({"revision": found, "head": head, "is_head": found == head})
    if found == head:
        console.line(f"{found} (this program's)")
        return 0
    console.line(
        f"{found or 'none'}, this program's is {head}: `moorage db upgrade` brings it there"
    )
    return 1


def run_upgrade(options: argparse.Namespace, console: Console) -> int:
    """Bring a log to this program's schema; nothing to do is fine."""
    folder = _folder(source.place(options.state))
    before, _ = migrate.current(folder)
    after = migrate.upgrade(folder)
    console.object({"revision": after, "before": before})
    console.line(f"{after}, as before" if before == after else f"{before or 'none'} -> {after}")
    return 0


def _folder(place: Path) -> Path:
    """Return the state folder also for one who names the database in it."""
    if place.is_file():
        if place != StateFiles(place.parent).database:
            raise StateError(str(place), "an upgrade needs the state folder, not a single file")
        return place.parent
    return place
