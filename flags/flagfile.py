"""Flag files: `--flagfile=FILE` stands for the flags that FILE holds.

One flag a line, as on the command line; empty lines and those that start with # or //
are skipped. A flag file may name others.
"""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import List, Sequence, Tuple

from flags.errors import UsageError

# Far above any real use: files that name each other many times over, or a device
# that never ends, are refused before they cost anything.
MAX_BYTES = 2**16
MAX_FILES = 100
SHOWN_CHARACTERS = 40


def expand(words: Sequence[str]) -> List[str]:
    """Replaces every flag file by its flags, in place.

    Args:
        words: a command line without the program's name.

    Raises:
        UsageError: for a file that cannot be read, is no text, or names itself.
    """
    return _expand(words, (), [])


def _expand(
    words: Sequence[str], opened: Tuple[str, ...], files_read: List[str]
) -> List[str]:
    """Expands the words of a file, given the files that led to it and all so far."""
    queue = deque(words)
    result: List[str] = []
    while queue:
        word = queue.popleft()
        name, equals, value = word.partition("=")
        if name not in ("--flagfile", "-flagfile"):
            result.append(word)
            continue
        if not equals and queue:
            value = queue.popleft()
        if not value:
            raise UsageError("--flagfile: found no value; name a file of flags")
        path = os.path.realpath(os.path.expanduser(value))
        files_read.append(path)
        _check_chain(value, path in opened, len(files_read))
        result.extend(_expand(_words(value, path), (*opened, path), files_read))
    return result


def _check_chain(shown: str, is_open: bool, count: int) -> None:
    if is_open:
        raise UsageError(
            f"--flagfile={shown}: the file leads back to itself, must not name itself"
        )
    if count > MAX_FILES:
        raise UsageError(
            f"--flagfile={shown}: found more than {MAX_FILES} flag files, must be fewer"
        )


def _words(shown: str, path: str) -> List[str]:
    """The words of a flag file, as the shell would hand them over."""
    words: List[str] = []
    for number, line in enumerate(_text(shown, path).splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith(("#", "//")):
            continue
        if not line.startswith("-"):
            raise UsageError(
                f"--flagfile={shown}: line {number} is '{line[:SHOWN_CHARACTERS]}', "
                "must be a flag; flags start with --"
            )
        words.extend(_split(line))
    return words


def _text(shown: str, path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"--flagfile={shown}: cannot be read ({reason}); name a file of flags"
        ) from None
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text or len(content) > MAX_BYTES:
        raise UsageError(f"--flagfile={shown}: found no text, must be a file of flags")
    return text


def _split(line: str) -> List[str]:
    """`--name value` is two words; a blank after the = belongs to the value."""
    name = line.partition("=")[0]
    return line.split(None, 1) if len(name.split()) > 1 else [line]
