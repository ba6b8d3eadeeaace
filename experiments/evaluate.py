"""Reloads a finished run and tells how it classifies, class by class.

    python -m experiments.evaluate RUN_DIR [--split=test|validation]

Prints the accuracy of each class and writes a confusion matrix to
RUN_DIR/confusion_<split>.png. The network is that of the run's configuration, weights
and prototypes come from its model.npz. (Reading model.keras would run what it says.)
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Dict, Sequence

import attr
import numpy as np

from data.partition import FederatedData
from fl import checkpoints, environment, plots, wiring
from fl.progress import write_line
from fl.run_folder import RunFiles, began_with, read_config
from flags.config import ExperimentConfig
from flags.errors import UsageError

if TYPE_CHECKING:
    from fl.evaluation import ScoreFn


def main(argv: Sequence[str]) -> int:
    """Runs the program; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.evaluate", description=__doc__.split("\n")[0]
    )
    parser.add_argument("run_dir", type=Path, help="folder of a finished run")
    parser.add_argument("--split", choices=("test", "validation"), default="test")
    arguments = parser.parse_args(argv)
    environment.set_up_logging()
    try:
        evaluate_run(arguments.run_dir, arguments.split)
    except UsageError as error:
        sys.stderr.write(f"evaluate: error: {error}\n")
        return 2
    return 0


def evaluate_run(run_dir: Path, split: str) -> np.ndarray:
    """Prints accuracies, writes the confusion matrix, and returns it.

    Raises:
        UsageError: if the folder holds no finished run or a file is damaged.
    """
    files = RunFiles(run_dir)
    if not files.config_file.exists():
        raise UsageError(f"{run_dir}: found no config.json, must be a run's folder")
    known = {field.name for field in attr.fields(ExperimentConfig)}
    values = read_config(files.config_file)
    config = ExperimentConfig(**{k: v for k, v in values.items() if k in known})
    arrays = read_export(files.weights_file)
    data = wiring.load_data(config)
    if not began_with(files.config_file, data.digest()):
        raise UsageError(
            f"{run_dir}: found other data for {config.dataset} than the run trained "
            f"on, must be the same ({config.data_dir or 'no --data_dir was given'})"
        )
    matrix = _confusion(files.weights_file, config, arrays, data, split)
    shares = matrix.diagonal() / matrix.sum(axis=1)
    for number, share in enumerate(shares):
        write_line(f"class {number}: accuracy {share:.4f} of {matrix[number].sum()}")
    write_line(f"all: accuracy {matrix.trace() / matrix.sum():.4f} of {matrix.sum()}")
    path = run_dir / f"confusion_{split}.png"
    names = [str(number) for number in range(data.num_classes)]
    plots.draw_confusion(matrix, names, path, f"{config.exp_name}: {split} images")
    write_line(f"confusion matrix: {path}")
    return matrix


def read_export(path: Path) -> Dict[str, np.ndarray]:
    """The arrays of a run's model.npz.

    Raises:
        UsageError: if there is none or it is damaged.
    """
    if not path.is_file():
        raise UsageError(f"{path}: not found; the run is not finished, or is no run")
    try:
        return checkpoints.read_arrays(path)
    # A hostile or damaged file can make zip and the npy parser raise anything.
    except Exception as error:
        what = checkpoints.one_line(error)
        raise UsageError(f"{path}: damaged ({what}); run it again") from None


def _confusion(
    weights_file: Path,
    config: ExperimentConfig,
    arrays: Dict[str, np.ndarray],
    data: FederatedData,
    split: str,
) -> np.ndarray:
    environment.prepare_tensorflow(config.threads)
    import tensorflow as tf

    from fl import evaluation

    rows = data.test if split == "test" else data.validation
    try:
        score = tf.function(_score_fn(config, arrays, data))
        result = evaluation.evaluate(score, data.images, rows)
    except (KeyError, ValueError, tf.errors.InvalidArgumentError):
        raise UsageError(
            f"{weights_file}: does not fit the run's configuration; run it again"
        ) from None
    return evaluation.confusion_matrix(result, data.num_classes)


def _score_fn(
    config: ExperimentConfig, arrays: Dict[str, np.ndarray], data: FederatedData
) -> ScoreFn:
    """How the finished run classifies: by its prototypes where it has some."""
    from fl import evaluation
    from fl.types import Prototypes

    by_prototypes = "prototypes" in arrays
    model = wiring.model_fn(config, data, has_head=not by_prototypes)()
    names = sorted(name for name in arrays if name.startswith("weights/"))
    model.set_weights([arrays[name] for name in names])
    if not by_prototypes:
        return lambda images, labels: evaluation.score_with_logits(
            model, images, labels
        )
    sets = Prototypes(arrays["prototypes"], arrays["prototypes_present"])
    return lambda images, labels: evaluation.score_with_prototypes(
        model, sets, images, labels, config.distance
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
