"""Brings the files of a hub repo into the user's own cache, where other programs find them too."""

from __future__ import annotations

from collections.abc import Callable

from moorage.hub.access import HubAccess
from moorage.protocols import Fetched, Flag, Progress
from moorage.spec import ModelSpec


class HubFetcher:
    """Fetches by huggingface_hub. Any thread may call it, also several at once."""

    def __init__(self, access: HubAccess | None = None) -> None:
        self._access = access or HubAccess()

    def fetch(
        self, spec: ModelSpec, progress: Callable[[Progress], None], cancelled: Flag
    ) -> Fetched:
        """Pin the commit, then fetch what of it is not in the cache yet.

        When the hub cannot be reached, what the cache has of that revision is enough.
        `cancelled` is seen between files and every ten megabytes.
        """
        # huggingface_hub takes 0.2 s to import, which a service of local files need not pay.
        from moorage.hub.download import Download  # noqa: PLC0415

        return Download(self._access, spec, progress, cancelled).run()
