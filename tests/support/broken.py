"""A package that is installed and cannot be imported, as one that lacks a library of the system."""

from __future__ import annotations

from pathlib import Path


def break_package(folder: Path, error: ImportError, name: str = "xllamacpp") -> None:
    """Put a package into a folder, the import of which raises the error."""
    package = folder / name
    package.mkdir()
    (package / "__init__.py").write_text(f"raise {error!r}\n")
