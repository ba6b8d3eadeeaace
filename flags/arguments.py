"""A parser of arguments that answers a mistake with one line."""

from __future__ import annotations

import argparse
from typing import NoReturn

from flags.errors import UsageError


class ArgumentParser(argparse.ArgumentParser):
    """As argparse's, but for how it complains."""

    def error(self, message: str) -> NoReturn:
        """Raises a `UsageError`."""
        raise UsageError(message.removeprefix("argument "))


def at_least_one(text: str) -> int:
    """For `type=`: a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(
            f"found '{text}', must be a whole number of at least 1"
        )
    return int(text)
