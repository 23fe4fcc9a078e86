"""The kinds of servers Moorage can start, and how those of others are found."""

from moorage.backends.installed import InstalledBackends

__all__ = ["InstalledBackends"]
