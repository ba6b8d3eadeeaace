"""Measuring several things in turn, so that a machine's moods meet them alike.

Ratios are taken turn by turn, and then their median: what slows the machine for a while
slows both sides of a ratio.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Sequence

from tqdm import tqdm


def interleaved(
    tasks: Mapping[str, Callable[[], Any]], repeats: int, warm_up: int = 1
) -> Dict[str, List[float]]:
    """Seconds that each task took each time.

    Args:
        tasks: what to measure, by name.
        repeats: how often; each time all tasks in turn, beginning with another one,
            so that none is always the one after a heavy one.
        warm_up: rounds before that are not counted (compilation).
    """
    names = list(tasks)
    seconds: Dict[str, List[float]] = {name: [] for name in names}
    with tqdm(total=(repeats + warm_up) * len(tasks), leave=False) as bar:
        for turn in range(-warm_up, repeats):
            shift = (turn + warm_up) % len(tasks)
            for name in names[shift:] + names[:shift]:
                bar.set_description(name)
                began = time.perf_counter()
                tasks[name]()
                if turn >= 0:
                    seconds[name].append(time.perf_counter() - began)
                bar.update()
    return seconds


def medians(seconds: Mapping[str, Sequence[float]]) -> Dict[str, float]:
    """The median of each."""
    return {name: statistics.median(values) for name, values in seconds.items()}


def ratio(seconds: Sequence[float], base: Sequence[float]) -> float:
    """The median over the turns of one task's seconds over another's."""
    return statistics.median(one / other for one, other in zip(seconds, base))


class Stolen:
    """The share of this machine's work that waited for other machines on its host."""

    def __init__(self, source: Path = Path("/proc/stat")):
        self._source = source
        self._start = self._read()

    def share(self) -> float:
        """Of the time since this was made in which a processor had work."""
        busy, stolen = (now - then for now, then in zip(self._read(), self._start))
        return stolen / max(busy + stolen, 1)

    def _read(self) -> Sequence[int]:
        # See proc(5): user nice system idle iowait irq softirq steal.
        ticks = [int(word) for word in self._source.read_text().split()[1:9]]
        return sum(ticks[:3]) + sum(ticks[5:7]), ticks[7]
