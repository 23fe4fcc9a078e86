"""Model files from the Hugging Face hub."""

from moorage.hub.access import HubAccess
from moorage.hub.fetch import HubFetcher

__all__ = ["HubAccess", "HubFetcher"]
