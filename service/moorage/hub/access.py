"""How the hub is reached."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HubAccess:
    """Where the hub is and how it is spoken to; what is None, huggingface_hub's settings decide.

    `token=False` sends none; else one that the user stored goes to any endpoint. `HF_TOKEN` among
    a spec's secrets is used for that model instead.
    """

    endpoint: str | None = None
    token: str | bool | None = None
    cache_dir: str | None = None
    answer_timeout_s: float = 5.0
    """How long the hub may take to answer for a listing, before any file is transferred."""
