"""The exception for a user's mistake."""

from __future__ import annotations


class UsageError(Exception):
    """One line: the flag or file, what was found, what would be right."""

    def __str__(self) -> str:
        """The line, with whatever would break it or garble a terminal escaped."""
        text = super().__str__()
        return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
