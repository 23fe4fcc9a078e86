"""What a repo has at one commit, by one request: names, sizes and hashes that belong together."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final, cast
from urllib.parse import quote

from moorage.hub.wire import Wire
from moorage.protocols import FetchFailedError, Flag

COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_SHA1: Final = COMMIT
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_MOST_BYTES: Final = 64 << 20
"""Of a listing; a hundred thousand files take half of it."""
_LARGEST: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class HubFile:
    """`etag` is what the cache calls it by: a sha256, or what git calls a small one by, a sha1."""

    name: str
    size: int
    etag: str

    @property
    def hash(self) -> str:
        """The hash with its kind, as the log has it."""
        if _SHA256.fullmatch(self.etag):
            return f"sha256:{self.etag}"
        return f"git:{self.etag}" if _SHA1.fullmatch(self.etag) else ""


@dataclass(frozen=True, slots=True)
class Listing:
    """All files of a repo at one commit, by name."""

    commit: str
    files: Mapping[str, HubFile]

    def same_content(self) -> dict[str, list[HubFile]]:
        """Return the files by their hash, but for those outside the model's folder."""
        same: dict[str, list[HubFile]] = {}
        for file in self.files.values():
            if not leaves_folder(file.name):
                same.setdefault(file.etag, []).append(file)
        return same

    @property
    def sizes(self) -> dict[str, int]:
        """The bytes of each file."""
        return {file.name: file.size for file in self.files.values()}


class NotAHubError(ValueError):
    """What answered is no hub."""


def ask(
    wire: Wire, repo: str, revision: str | None, token: str | bool | None, cancelled: Flag
) -> Listing:
    """Return what the repo has at the commit that the revision means now.

    Raises what `Exchange` raises, NotAHubError, and FetchFailedError for a name that leaves the
    folder.
    """
    at = "" if revision is None else f"/revision/{quote(revision, safe='')}"
    url = f"{wire.endpoint}/api/models/{repo}{at}?blobs=true"
    body = bytearray()
    # Closed after it, so that the first transfer has a connection that can be shut down at once.
    with wire.get(url, token, {"Connection": "close"}, cancelled) as exchange:
        exchange.answer()
        for piece in exchange.pieces():
            body += piece
            if len(body) > _MOST_BYTES:
                raise NotAHubError(f"its listing has more than {_MOST_BYTES} bytes")
    return _read(body)


def _read(body: bytearray) -> Listing:
    try:
        data: Any = json.loads(body)
        commit = _matching(COMMIT, data["sha"])
        files = [_file(sibling) for sibling in cast("list[dict[str, Any]]", data["siblings"])]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise NotAHubError(f"its listing has not what one has: {error}") from error
    return Listing(commit, {file.name: file for file in files})


def _file(sibling: dict[str, Any]) -> HubFile:
    large = sibling.get("lfs")
    etag = _hash(_SHA256, large["sha256"]) if large else _hash(_SHA1, sibling["blobId"])
    size = (large or sibling)["size"]
    name = sibling["rfilename"]
    if type(size) is not int or not 0 <= size <= _LARGEST:
        raise ValueError(f"{name!r} of {size!r} bytes")
    name.encode()  # JSON can name what no disk and no log takes
    return HubFile(name, size, etag)


def _hash(kind: re.Pattern[str], text: Any) -> str:
    # Some stand-ins for the hub write capitals; blobs and digests are in small letters.
    return _matching(kind, text.lower())


def _matching(kind: re.Pattern[str], text: Any) -> str:
    # It becomes a part of paths: a hub that means harm must not choose them.
    if not isinstance(text, str) or not kind.fullmatch(text):
        raise ValueError(f"{text!r} is no hash")
    return text


def refuse_outside(name: str) -> None:
    """Refuse a name that leaves the folder of its model. Raises FetchFailedError."""
    if leaves_folder(name):
        raise FetchFailedError(
            f"the hub lists a file {name!r}, which leaves the model's folder; "
            "nothing of this repo was stored: choose another",
            "unsafe-name",
        )


def leaves_folder(name: str) -> bool:
    """Tell whether a name is that of a file elsewhere, or of none."""
    parts = PurePosixPath(name.replace("\\", "/"))
    return not parts.name or parts.is_absolute() or ".." in parts.parts or "\0" in name
