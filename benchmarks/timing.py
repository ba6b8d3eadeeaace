"""Measuring several things in turn, so that a machine's moods meet them alike."""

from __future__ import annotations

import statistics
import time
from typing import Any, Callable, Dict, List, Mapping

from tqdm import tqdm


def interleaved(
    tasks: Mapping[str, Callable[[], Any]], repeats: int, warm_up: int = 1
) -> Dict[str, List[float]]:
    """Seconds that each task took each time.

    Args:
        tasks: what to measure, by name.
        repeats: how often; each time all tasks in turn.
        warm_up: rounds before that are not counted (compilation).
    """
    seconds: Dict[str, List[float]] = {name: [] for name in tasks}
    with tqdm(total=(repeats + warm_up) * len(tasks), leave=False) as bar:
        for turn in range(-warm_up, repeats):
            for name, task in tasks.items():
                bar.set_description(name)
                began = time.perf_counter()
                task()
                if turn >= 0:
                    seconds[name].append(time.perf_counter() - began)
                bar.update()
    return seconds


def medians(seconds: Mapping[str, List[float]]) -> Dict[str, float]:
    """The median of each."""
    return {name: statistics.median(values) for name, values in seconds.items()}
