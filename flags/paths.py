"""Paths that a user names."""

from __future__ import annotations

from pathlib import Path

from flags.errors import UsageError


def expand(flag: str, path: str) -> Path:
    """A path that may begin with `~`, which a shell leaves alone behind a `=`.

    Raises:
        UsageError: if it begins with the home of nobody.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UsageError(f"--{flag}: found {path}; {error}") from None
