"""Shows how a run goes: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Optional, Sequence, Type

from tqdm import tqdm

from fl.records import RoundRecord

MINUTE = 60.0
HOUR = 3600.0
# The time left is told from this many rounds; the first one includes compilation.
RECENT = 20


class Progress:
    """Tells of each round as it ends."""

    def __init__(self, num_round: int, rows: Sequence[RoundRecord]):
        """Starts at the rounds already done.

        Args:
            num_round: rounds of the whole run.
            rows: those done before.
        """
        self._num_round = num_round
        self._evaluated: Optional[RoundRecord] = None
        self._seconds: list[float] = []
        self._bar: Optional[tqdm] = None
        if sys.stdout.isatty() and sys.stderr.isatty():
            self._bar = tqdm(total=num_round, initial=len(rows), unit="round")

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def tell(self, row: RoundRecord, wall_seconds: float) -> None:
        """Shows a round that has just ended and took so long, evaluation included."""
        self._seconds = [*self._seconds, wall_seconds][-RECENT:]
        if row.val_acc is not None:
            self._evaluated = row
        if self._bar is None:
            write_line(self._line(row))
            return
        self._bar.set_postfix_str(self._figures(row), refresh=False)
        self._bar.update()

    def _line(self, row: RoundRecord) -> str:
        left = (self._num_round - row.round) * self._pace()
        return (
            f"round {row.round}/{self._num_round}  {self._figures(row)}  "
            f"{self._pace():.1f} s/round  {duration(left)} left"
        )

    def _figures(self, row: RoundRecord) -> str:
        text = f"loss {row.train_loss:.4f}  train acc {row.train_acc:.3f}"
        seen = self._evaluated
        if seen is not None:
            text += f"  val acc {seen.val_acc:.3f}  test acc {seen.test_acc:.3f}"
        return text

    def _pace(self) -> float:
        ordered = sorted(self._seconds)
        return ordered[len(ordered) // 2]


def duration(seconds: float) -> str:
    """`45 s`, `12 min` or `3.5 h`."""
    if seconds < 2 * MINUTE:
        return f"{seconds:.0f} s"
    if seconds < 2 * HOUR:
        return f"{seconds / MINUTE:.0f} min"
    return f"{seconds / HOUR:.1f} h"


def write_line(text: str) -> None:
    """A line on standard output, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
