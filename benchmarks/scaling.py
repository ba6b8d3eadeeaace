"""How the cost of a round grows with clients, helpers and classes.

    python -m benchmarks.scaling [m] [H] [K] [--repeats=5] [--out_dir=runs] [flags]

Runs rounds of ProtoFSSL (ResNet8, 32x32 images of noise: speed does not depend on what
they show), all in turn, and tells seconds per client

* with m = 5, 10, 20, 30 active clients, which should be constant within 10 %;
* with H = 1, 5, 10, 30 helpers, within 5 %;
* with K = 10 and 100 classes, also per image, as an episode then has more of them;

or only what is named. A client trains two episodes of the paper's size (30 labelled and
100 unlabelled images): in shorter rounds, what is done once a round would show, and
make many clients look cheaper. Writes <out_dir>/scaling.csv and scaling.png.
"""

from __future__ import annotations

import csv
import functools
import io
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

import attr
import numpy as np
from absl import logging

from benchmarks import program, timing
from fl import files, wiring
from flags.parse import parse

COMMON = (
    "--num_client=30",
    "--local_episode=2",
    "--num_unlabel=100",
    "--num_label=3",
    "--optimizer_state=fresh",
    "--helper_policy=newest",
)
CLASSES = (10, 100)
FEW_CLIENTS = 5
IMAGES_A_CLASS = {10: 500, 100: 200}


@attr.frozen
class Point:
    """One measured setting.

    Attributes:
        series: what varies: m, H or K.
        value: its value.
        run: a round of it.
        clients: that train in it.
        images: of an episode.
    """

    series: str
    value: int
    run: Callable[[], Any]
    clients: int
    images: int

    @property
    def name(self) -> str:
        """Such as `m = 5`."""
        return f"{self.series} = {self.value}"


def main(argv: Sequence[str]) -> int:
    """Runs the program; returns its exit code."""
    return program.run("scaling", argv, {"repeats": 5}, _measure)


def _measure(numbers: Mapping[str, int], words: Sequence[str]) -> List[str]:
    named, flags = program.split_parts(words, tuple(SERIES))
    config = program.protofssl([*COMMON, "--dataset=cifar10", *flags])
    with program.workers(config) as folder:
        write_noise(folder)
        common = [*COMMON, f"--data_dir={folder}", *flags]
        points = [
            make(common, value)
            for name in named
            for make, values in [SERIES[name]]
            for value in values
        ]
        tasks = {point.name: point.run for point in points}
        seconds = timing.interleaved(tasks, numbers["repeats"])
    rows = table_rows(points, seconds)
    out_dir = Path(config.out_dir)
    _write(rows, out_dir)
    place = f"table and picture: {out_dir}/scaling.csv, scaling.png"
    return [*table_lines(rows), place]


def write_noise(folder: Path) -> None:
    """Data sets of 10 and of 100 classes, with the names of real ones."""
    rng = np.random.RandomState(0)
    for classes, name in zip(CLASSES, ("cifar10", "cifar100")):
        count = classes * IMAGES_A_CLASS[classes]
        images = rng.randint(0, 256, [count, 32, 32, 3]).astype(np.uint8)
        labels = np.tile(np.arange(classes, dtype=np.uint8), IMAGES_A_CLASS[classes])
        held_out = slice(0, 20 * classes)
        np.savez(
            folder / f"{name}.npz",
            x_train=images,
            y_train=labels,
            x_test=images[held_out],
            y_test=labels[held_out],
        )


def _clients_point(common: Sequence[str], active: int) -> Point:
    flags = ["--dataset=cifar10", f"--num_active_client={active}", "--helper_cnt=5"]
    return _point("m", active, [*common, *flags], helpers=5)


def _helpers_point(common: Sequence[str], helpers: int) -> Point:
    rounds = -(-helpers // FEW_CLIENTS)
    flags = [
        "--dataset=cifar10",
        f"--num_active_client={FEW_CLIENTS}",
        f"--helper_cnt={helpers}",
        f"--keep_proto_rounds={rounds}",
    ]
    return _point("H", helpers, [*common, *flags], helpers=helpers)


def _classes_point(common: Sequence[str], classes: int) -> Point:
    name = {10: "cifar10", 100: "cifar100"}[classes]
    flags = [
        f"--dataset={name}",
        f"--num_active_client={FEW_CLIENTS}",
        "--helper_cnt=5",
    ]
    return _point("K", classes, [*common, *flags], helpers=5)


def _point(series: str, value: int, words: Sequence[str], helpers: int) -> Point:
    logging.info("making %s = %d", series, value)
    config = parse(words).config
    method: Any = wiring.make_method(config, wiring.load_data(config))
    state = program.second_round(method, helpers)
    classes = method.setup.data.num_classes
    return Point(
        series=series,
        value=value,
        run=functools.partial(method.run_round, state),
        clients=config.num_active_client,
        images=classes * (config.s_label + config.q_label) + config.q_unlabel,
    )


SERIES: Mapping[str, Tuple[Callable[[Sequence[str], int], Point], Sequence[int]]] = {
    "m": (_clients_point, (5, 10, 20, 30)),
    "H": (_helpers_point, (1, 5, 10, 30)),
    "K": (_classes_point, CLASSES),
}


def table_rows(
    points: Sequence[Point], seconds: Mapping[str, Sequence[float]]
) -> List[Dict[str, Any]]:
    """The table: medians, and ratios to the first point of the same series.

    Args:
        points: what was measured.
        seconds: of a round, by a point's name, turn by turn.
    """
    medians = timing.medians(seconds)
    rows = []
    for point in points:
        first = next(p for p in points if p.series == point.series)
        ratio = timing.ratio(seconds[point.name], seconds[first.name])
        ratio *= first.clients / point.clients
        each = medians[point.name] / point.clients
        rows.append(
            {
                "varies": point.series,
                "value": point.value,
                "seconds": medians[point.name],
                "seconds_a_client": each,
                "ratio_a_client": ratio,
                "ms_an_image": 1000 * each / point.images,
                "ratio_an_image": ratio * first.images / point.images,
            }
        )
    return rows


def table_lines(rows: Sequence[Mapping[str, Any]]) -> List[str]:
    """The table as text."""
    lines = [f"{'':8} {'s/client':>9} {'ratio':>6} {'ms/image':>9} {'ratio':>6}"]
    for row in rows:
        lines.append(
            f"{row['varies']} = {row['value']:<4d} {row['seconds_a_client']:9.3f} "
            f"{row['ratio_a_client']:6.2f} {row['ms_an_image']:9.2f} "
            f"{row['ratio_an_image']:6.2f}"
        )
    return lines


def _write(rows: Sequence[Mapping[str, Any]], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    files.write_text(folder / "scaling.csv", text.getvalue())
    draw(rows, folder / "scaling.png")


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """A panel for each quantity that varies."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    labels = {"m": "active clients m", "H": "helpers H", "K": "classes K"}
    found = [series for series in labels if any(r["varies"] == series for r in rows)]
    figure, axes = plt.subplots(1, len(found), figsize=(10, 3.2), squeeze=False)
    for axis, series in zip(axes[0], found):
        own = [row for row in rows if row["varies"] == series]
        column = "ms_an_image" if series == "K" else "seconds_a_client"
        axis.plot([r["value"] for r in own], [r[column] for r in own], marker="o")
        axis.set_xlabel(labels[series])
        axis.set_ylabel("ms per image" if series == "K" else "seconds per client")
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    figure.tight_layout()
    with files.atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=150, format="png")
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
