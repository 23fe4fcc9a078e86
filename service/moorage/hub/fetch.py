"""Brings the files of a hub repo into the user's own cache, where other programs find them too."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from moorage.hub.access import HubAccess
from moorage.hub.turns import Turns
from moorage.protocols import Fetched, Flag, Progress
from moorage.spec import ModelSpec

if TYPE_CHECKING:
    from moorage.hub.wire import Wire


class HubFetcher:
    """Fetches for all models of a service. Any thread may call it, also several at once."""

    def __init__(self, access: HubAccess | None = None) -> None:
        self._access = access or HubAccess()
        self._turns = Turns(self._access.max_parallel)
        self._lock = threading.Lock()
        self._wire: Wire | None = None

    def fetch(
        self, spec: ModelSpec, progress: Callable[[Progress], None], cancelled: Flag
    ) -> Fetched:
        """Pin the commit, then fetch what of it is not in the cache yet, from where it stopped.

        When the hub cannot be reached, what the cache has of that revision is enough. `cancelled`
        is seen within a tenth of a second, whatever the hub is doing.
        """
        # huggingface_hub takes 0.2 s to import, which a service of local files need not pay.
        from moorage.hub.download import Download  # noqa: PLC0415

        return Download(
            access=self._access,
            wire=self._reach(),
            turns=self._turns,
            spec=spec,
            progress=progress,
            cancelled=cancelled,
        ).run()

    def _reach(self) -> Wire:
        from moorage.hub.wire import Wire  # noqa: PLC0415

        with self._lock:
            if self._wire is None:
                self._wire = Wire(self._access)
            return self._wire
