"""What a client computes and sends in a round: Tables 1 and 2 of Kim et al. 2022.

    python -m experiments.costs [flags of main.py] [--num_view=A] [--layers]
        [--run=RUN_DIR[,RUN_DIR...]] [--csv=FILE] [--json=FILE]

Prints up to four tables; GFLOP are 10^9 operations, MB 10^6 bytes.

1. The paper's formulas and what they give (`experiments.cost_formulas` explains the
   letters). Without flags it is the paper's example, on CIFAR-10 with ResNet9.
2. What the same flags make our own methods do, each with its recipe where a flag is not
   given (`experiments.client_work`). The paper counts forward passes alone and all of a
   client's images once an epoch; methods really take episodes or batches, and the
   backward pass.
3. With --run: what runs really sent, by client and round (bytes_down and bytes_up of
   their metrics.csv), beside both.
4. With --layers: the network, layer by layer (`models.flops`).

--csv writes the first two, a row a method; --json all that was asked for.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
from pathlib import Path
from typing import (
    Any,
    Dict,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
)

import attr

from data.sources import DATASETS
from experiments import cost_formulas
from experiments.client_work import (
    NOTES,
    expected_bytes,
    num_helpers,
    own_configs,
    work,
)
from experiments.cost_formulas import (
    FORMULAS,
    PAPER_VIEWS,
    Letters,
    letters,
    network_of,
    paper_setting,
)
from fl import environment, files
from fl.progress import write_line
from fl.records import RecordError, RoundRecord, read_rows
from fl.run_folder import RunFiles, read_config
from flags.arguments import ArgumentParser
from flags.config import ExperimentConfig, declarations
from flags.errors import UsageError
from flags.parse import HelpWanted, given_flags
from flags.resolve import check_value

GIGA = 10**9
MEGA = 10**6

Row = Dict[str, Any]


@attr.frozen
class Report:
    """All that is to be told; the tables are rows of named values.

    Attributes:
        setting: the configuration behind the formulas.
        views: A.
        formulas: the first table, by method.
        own: the second, by method.
        refused: for each method that the flags do not suit, why.
        runs: the third.
        layers: the fourth.
    """

    setting: ExperimentConfig
    views: int
    formulas: Mapping[str, Row]
    own: Mapping[str, Row]
    refused: Mapping[str, str]
    runs: Sequence[Row]
    layers: Sequence[Row]


def main(argv: Sequence[str]) -> int:
    """Runs the program; returns its exit code."""
    environment.set_up_logging()
    try:
        own, rest = _own_arguments(argv)
        report = make_report(own, given_flags(rest))
        for line in report_lines(report):
            write_line(line)
        _write_files(own, report)
    except HelpWanted as wanted:
        write_line("\n".join([__doc__, cost_formulas.__doc__ or "", str(wanted)]))
    except UsageError as error:
        sys.stderr.write(f"costs: error: {error}\n")
        return 2
    return 0


def make_report(own: argparse.Namespace, given: Mapping[str, Any]) -> Report:
    """Counts everything.

    Args:
        own: this program's own arguments.
        given: the flags of main.py that were given.

    Raises:
        UsageError: for a wrong flag or a run that cannot be read.
    """
    setting = paper_setting(given)
    configs, refused = own_configs({"dataset": setting.dataset, **given})
    read = [(path, *read_run(Path(path))) for path in own.run]
    environment.prepare_tensorflow()
    return Report(
        setting=setting,
        views=own.num_view,
        formulas={m: _formula_row(m, setting, own.num_view) for m in FORMULAS},
        own={config.method: _own_row(config) for config in configs},
        refused=refused,
        runs=[run_row(*run) for run in read],
        layers=_layer_rows(setting) if own.layers else [],
    )


def read_run(folder: Path) -> Tuple[ExperimentConfig, List[RoundRecord]]:
    """The configuration and the rounds of a run.

    Raises:
        UsageError: if there is no such run, it has no round, or a file is damaged.
    """
    run = RunFiles(folder)
    if not run.config_file.exists():
        raise UsageError(f"--run: found no config.json in {folder}, must be a run")
    values = read_config(run.config_file)
    known = [field for field in declarations() if field.name in values]
    try:
        for field in known:
            _check_type(field, values[field.name])
            check_value(field, values[field.name])
        rows = read_rows(run.metrics_file, RoundRecord)
    except RecordError as error:
        raise UsageError(f"--run: {error}") from None
    except UsageError as error:
        raise UsageError(f"--run: {run.config_file} is damaged ({error})") from None
    if not rows or any(None in (row.bytes_down, row.bytes_up) for row in rows):
        raise UsageError(
            f"--run: {run.metrics_file} does not tell what was sent; a run with at "
            "least one round is right"
        )
    return ExperimentConfig(**{f.name: values[f.name] for f in known}), rows


def run_row(path: str, config: ExperimentConfig, rows: Sequence[RoundRecord]) -> Row:
    """The third table's row: means by client and round, in MB."""
    shares = len(rows) * config.num_active_client * MEGA
    down = sum(row.bytes_down or 0 for row in rows) / shares
    up = sum(row.bytes_up or 0 for row in rows) / shares
    return {
        "run": path,
        "method": config.method,
        "rounds": len(rows),
        "optimizer_state": config.optimizer_state,
        "megabyte_down": down,
        "megabyte_up": up,
        "megabyte": down + up,
        "formula_megabyte": _in_mega(_formula_bytes(config)),
        "expected_megabyte": _in_mega(expected_bytes(config)),
    }


def report_lines(report: Report) -> Iterator[str]:
    """The tables, as text."""
    yield from _setting_lines(report)
    yield ""
    yield "A client in a round, by the paper's formulas:"
    yield from _formula_lines(report)
    yield ""
    yield "What these flags make our methods do (images; back is two forward passes):"
    yield from _own_lines(report)
    if report.runs:
        yield ""
        yield "What runs sent, by client and round:"
        yield from _run_lines(report)
    if report.layers:
        yield ""
        yield "The network, layer by layer:"
        yield from _layer_lines(report)


def _check_type(declared: Any, value: Any) -> None:
    kind = type(declared.default)
    if not isinstance(value, (int, float) if kind is float else kind):
        raise UsageError(f"--{declared.name}: found {value!r}")


def _own_arguments(argv: Sequence[str]) -> Tuple[argparse.Namespace, List[str]]:
    """This program's own arguments, and the rest: flags of main.py."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--num_view", type=int, default=PAPER_VIEWS)
    parser.add_argument("--layers", action="store_true")
    parser.add_argument("--run", action="append", default=[])
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--json", type=Path)
    own, rest = parser.parse_known_args(argv)
    own.run = [path for paths in own.run for path in paths.split(",") if path]
    if own.num_view < 1:
        raise UsageError(f"--num_view: found {own.num_view}, must be at least 1")
    return own, rest


def _formula_row(method: str, setting: ExperimentConfig, views: int) -> Row:
    formula = FORMULAS[method]
    values = letters(setting, formula.has_head, setting.helper_cnt, views)
    return {
        "label": formula.label,
        "in_paper": formula.in_paper,
        "computation": formula.computation,
        "gflop": formula.flops(values) / GIGA,
        "communication": formula.communication,
        "megabyte": formula.num_bytes(values) / MEGA,
    }


def _formula_bytes(config: ExperimentConfig) -> Optional[float]:
    """What the formula gives for a run; None for a method that has none."""
    formula = FORMULAS.get(config.method)
    if formula is None:
        return None
    helpers = num_helpers(config)
    return formula.num_bytes(letters(config, formula.has_head, helpers))


def _in_mega(value: Optional[float]) -> Optional[float]:
    return None if value is None else value / MEGA


def _own_row(config: ExperimentConfig) -> Row:
    done = work(config)
    return {
        "local_episode": config.local_episode,
        "optimizer_state": config.optimizer_state,
        "images_forward": done.forward,
        "images_forward_and_back": done.trained,
        "own_gflop": done.flops / GIGA,
        "own_megabyte": _in_mega(done.num_bytes),
        "note": NOTES.get(config.method, ""),
    }


def _layer_rows(setting: ExperimentConfig) -> List[Row]:
    layers = network_of(setting, has_head=True).layers
    return [attr.asdict(layer) for layer in layers]


def _setting_lines(report: Report) -> Iterator[str]:
    setting = report.setting
    height, width, channels = DATASETS[setting.dataset].image_shape
    yield (
        f"{setting.model} on {setting.dataset}, {height}x{width}x{channels}, norm "
        f"{setting.bn_type}"
    )
    headed, headless = (
        letters(setting, has_head, setting.helper_cnt) for has_head in (True, False)
    )
    yield f"  with the dense layer:    {_size(headed)}"
    yield f"  without it (ProtoFSSL):  {_size(headless)}"
    yield (
        f"  C = {headless.prototype_bytes / 1000:.3f} kB ({headless.embedding} values)"
        f", K = {headed.classes}, |DL| = {headed.labeled}, |DU| = {headed.unlabeled}, "
        f"E = {headed.epochs}, H = {headed.helpers}, A = {report.views}, "
        f"R_H = {headed.interval}"
    )


def _size(values: Letters) -> str:
    return (
        f"F = {values.flops / GIGA:.4f} GFLOP an image, "
        f"Theta = {values.theta / MEGA:.2f} MB ({values.theta // 4:,} weights)"
    )


def _formula_lines(report: Report) -> Iterator[str]:
    yield from _table(
        ("method", "computation", "GFLOP>", "communication", "MB>", ""),
        [
            (
                row["label"],
                row["computation"],
                f"{row['gflop']:.1f}",
                row["communication"],
                f"{row['megabyte']:.1f}",
                "" if row["in_paper"] else "not in the paper",
            )
            for row in report.formulas.values()
        ],
    )


def _own_lines(report: Report) -> Iterator[str]:
    heads = ("method", "E>", "forward only>", "and back>", "GFLOP>", "MB>")
    yield from _table(
        (*heads, "optimizer", ""),
        [
            (
                FORMULAS[method].label,
                str(row["local_episode"]),
                str(row["images_forward"]),
                str(row["images_forward_and_back"]),
                f"{row['own_gflop']:.1f}",
                _number(row["own_megabyte"]),
                row["optimizer_state"],
                row["note"],
            )
            for method, row in report.own.items()
        ],
    )
    for method, reason in report.refused.items():
        yield f"{FORMULAS[method].label}: not with these flags ({reason})"


def _run_lines(report: Report) -> Iterator[str]:
    heads = ("run", "method", "rounds>", "down>", "up>", "MB>", "formula>", "off>")
    yield from _table(
        (*heads, "expected>", "off>", "optimizer"),
        [
            (
                row["run"],
                row["method"],
                str(row["rounds"]),
                f"{row['megabyte_down']:.3f}",
                f"{row['megabyte_up']:.3f}",
                f"{row['megabyte']:.3f}",
                _number(row["formula_megabyte"], 3),
                _off(row["megabyte"], row["formula_megabyte"]),
                _number(row["expected_megabyte"], 3),
                _off(row["megabyte"], row["expected_megabyte"]),
                row["optimizer_state"],
            )
            for row in report.runs
        ],
    )


def _layer_lines(report: Report) -> Iterator[str]:
    rows = [
        (
            row["name"],
            row["kind"],
            "x".join(str(size) for size in row["output_shape"]),
            f"{row['num_weights']:,}",
            f"{row['flops']:,}",
        )
        for row in report.layers
    ]
    weights = sum(row["num_weights"] for row in report.layers)
    flops = sum(row["flops"] for row in report.layers)
    rows.append(("all", "", "", f"{weights:,}", f"{flops:,}"))
    yield from _table(("layer", "kind", "output", "weights>", "FLOP>"), rows)


def _number(value: Optional[float], digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _off(found: float, wanted: Optional[float]) -> str:
    """How far off a value is, in per cent of what was wanted."""
    return "-" if wanted is None else f"{100 * (found / wanted - 1):+.2f} %"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines in columns; a head that ends in > aligns its column to the right."""
    lines = [[head.rstrip(">") for head in heads], *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    for line in lines:
        cells = [
            cell.rjust(width) if head.endswith(">") else cell.ljust(width)
            for cell, width, head in zip(line, widths, heads)
        ]
        yield "  ".join(cells).rstrip()


def _write_files(own: argparse.Namespace, report: Report) -> None:
    try:
        if own.csv:
            files.write_text(own.csv, _csv_text(report))
            write_line(f"table: {own.csv}")
        if own.json:
            files.write_json(own.json, _as_json(report))
            write_line(f"all figures: {own.json}")
    except OSError as error:
        raise UsageError(
            f"--csv, --json: {error.filename} cannot be written ({error.strerror}); "
            "name a file that can"
        ) from None


def _csv_text(report: Report) -> str:
    rows = _method_rows(report)
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _method_rows(report: Report) -> List[Row]:
    """The first two tables, joined by method."""
    return [
        {"method": method, **row, **report.own.get(method, {})}
        for method, row in report.formulas.items()
    ]


def _as_json(report: Report) -> Row:
    setting = report.setting
    headed, headless = (
        attr.asdict(letters(setting, has_head, setting.helper_cnt, report.views))
        for has_head in (True, False)
    )
    return {
        "dataset": setting.dataset,
        "model": setting.model,
        "bn_type": setting.bn_type,
        "with_dense_layer": headed,
        "without_dense_layer": headless,
        "methods": _method_rows(report),
        "refused": dict(report.refused),
        "runs": list(report.runs),
        "layers": list(report.layers),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
