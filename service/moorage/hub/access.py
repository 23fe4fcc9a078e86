"""How the hub is reached, and how patiently."""

from __future__ import annotations

from dataclasses import dataclass, field

from moorage import limits as check
from moorage.errors import ConfigurationError

_LONGEST_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HubAccess:
    """Where the hub is and how it is spoken to; what is None, huggingface_hub's settings decide.

    These are `HF_ENDPOINT`, `HF_TOKEN` or the stored token, `HF_HOME` and `HF_HUB_CACHE`, and
    always `HF_HUB_OFFLINE` and the proxies. Raises ConfigurationError for what cannot be used.
    """

    endpoint: str | None = None
    token: str | bool | None = field(default=None, repr=False)
    """False sends none; else one that the user stored goes to any endpoint. `HF_TOKEN` among a
    spec's secrets is used for that model instead."""
    cache_dir: str | None = None
    max_parallel: int = 3
    """So many models of a service are transferred at once; others wait their turn."""
    answer_timeout_s: float = 5.0
    """How long the hub may take to answer."""
    stall_timeout_s: float = 20.0
    """A connection that brings less than `min_bytes_per_s` over this long is given up for a new
    one, which goes on from there."""
    min_bytes_per_s: int = 1024
    retries: int = 5
    """So many times in a row a transfer that broke off goes on by itself."""
    retry_wait_s: float = 0.5
    """The wait before the first of them; it doubles each time."""
    proxy_loopback: bool = False
    """Speak to a hub on this machine by the proxies of the environment, too."""

    def __post_init__(self) -> None:
        for name in ("endpoint", "cache_dir"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise ConfigurationError(f"HubAccess.{name}", f"must be text, not {value!r}")
        if not isinstance(self.token, str | bool | None):
            raise ConfigurationError("HubAccess.token", "must be text, True, False or None")
        if not isinstance(self.proxy_loopback, bool):
            raise ConfigurationError("HubAccess.proxy_loopback", "must be True or False")
        check.whole("HubAccess.max_parallel", self.max_parallel, low=1, high=1000)
        check.whole("HubAccess.retries", self.retries, low=0, high=1000)
        check.whole("HubAccess.min_bytes_per_s", self.min_bytes_per_s, low=0, high=1 << 40)
        for name in ("answer_timeout_s", "stall_timeout_s", "retry_wait_s"):
            check.seconds(f"HubAccess.{name}", getattr(self, name), high=_LONGEST_S)
