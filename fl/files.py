"""Files that are either whole or absent, whenever the program is killed."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import secrets
from pathlib import Path
from typing import Any, Iterator, List, Union

PathLike = Union[str, "os.PathLike[str]"]

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.unfinished(\.\w+)?")


@contextlib.contextmanager
def atomic_path(path: PathLike) -> Iterator[Path]:
    """Lends a temporary path whose file takes the place of `path` at the end.

    The file is on the disk before it gets its name, so a reader (or a run resumed
    after a power cut) sees the old content or the new one, never a part.

    Args:
        path: Where the file is to stand. Its folder is made if there is none.

    Yields:
        A path in the same folder, to be written and closed inside the block. If the
        block raises, that file is removed and `path` stays as it was.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    # The ending stays the last part of the name: some writers insist on theirs.
    temporary = target.with_name(
        f".{target.stem}.{secrets.token_hex(8)}.unfinished{target.suffix}"
    )
    try:
        yield temporary
        _sync(temporary)
        os.replace(temporary, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):  # A full disk names no file.
            error.filename = str(target)
        raise
    _sync(target.parent)


def write_text(path: PathLike, text: str) -> None:
    """Writes `text` to `path` atomically, as UTF-8 and with its line ends as given."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(text.encode("utf-8"))


def write_json(path: PathLike, obj: Any) -> None:
    """Writes `obj` to `path` atomically as JSON, keys in the order given.

    JSON has no word for a number that is not finite: those become null.
    """
    text = json.dumps(_finite(obj), indent=2, ensure_ascii=False, allow_nan=False)
    write_text(path, text + "\n")


def is_leftover(name: str) -> bool:
    """Whether a file of that name is one that a killed run left unfinished."""
    return bool(_TEMPORARY.fullmatch(name))


def remove_leftovers(folder: PathLike) -> List[Path]:
    """Deletes the temporary files that a killed run left anywhere under `folder`.

    To be called before anything is written: it cannot tell a dead run's file from one
    that is being written.

    Returns:
        The files deleted, in the order of their names.
    """
    found = sorted(
        Path(parent, name)
        for parent, _, names in os.walk(folder)
        for name in names
        if is_leftover(name)
    )
    for leftover in found:
        leftover.unlink()
    return found


def _sync(path: Path) -> None:
    """Waits until a file, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _finite(obj: Any) -> Any:
    """Replaces the numbers that JSON cannot hold by None, at any depth."""
    if isinstance(obj, float):
        return obj if math.isfinite(obj) else None
    if isinstance(obj, dict):
        return {key: _finite(value) for key, value in obj.items()}
    if isinstance(obj, (list, tuple)):
        return [_finite(value) for value in obj]
    return obj
