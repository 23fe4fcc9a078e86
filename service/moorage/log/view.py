"""A view for SQL, with what each of its columns says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """`columns` are in the order of the query, each with what it says."""

    name: str
    says: str
    columns: Mapping[str, str]
    query: str

    def create(self, *, temporary: bool = False) -> str:
        """Return the statement that makes it."""
        kind = "TEMP VIEW" if temporary else "VIEW"
        return f"CREATE {kind} {self.name} AS\n{self.query}"
