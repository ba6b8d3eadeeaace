"""Memory that Python frees only when it looks for it.

A picture of the curves is a web of objects that refer to each other, with megabytes of
pixels among them, and so is a bit of what every round leaves. Python's garbage
collector would get to them some rounds later, and until then memory grows. Looking at
the end of each round keeps it flat; looking only at what has come since the first round
makes that a matter of a millisecond, where all that TensorFlow consists of would take
some tenths of a second.

What is freed returns to the kernel once a round: in a heap that is kept for good, every
message that finds no hole of its size makes it larger. (Never to keep it costs more: a
round's many copies of the weights would each be paged in anew.)
"""

from __future__ import annotations

import gc
from types import TracebackType
from typing import Optional, Type

from fl import libc


class Sweep:
    """Frees such memory whenever it is called, inside `with`.

    What is there after the first call is taken to stay until the end of the `with`.
    """

    def __init__(self) -> None:
        self._called = False

    def __enter__(self) -> Sweep:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        gc.unfreeze()

    def __call__(self) -> None:
        """Frees what nothing but itself refers to."""
        gc.collect()
        if not self._called:
            gc.freeze()
        self._called = True
        libc.release_memory()
