"""Trains ProtoFSSL and the methods it is compared with; `--help` tells how.

Flags -> configuration -> data -> method -> run. TensorFlow is imported only when all
that can be checked without it has been.
"""

from __future__ import annotations

import json
import logging as standard_logging
import os
import signal
import sys
from typing import Any, Sequence

from absl import logging

from data.partition import FederatedData, PartitionSpec, partition
from data.sources import DataError, load_dataset
from fl.progress import write_line
from fl.run_folder import RunFolder
from flags.config import ExperimentConfig
from flags.errors import UsageError
from flags.parse import HelpWanted, parse

EXIT_USAGE = 2
EXIT_FAILURE = 1
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


def main(argv: Sequence[str]) -> int:
    """Runs the program; returns its exit code."""
    _set_up_logging()
    signal.signal(signal.SIGTERM, _on_terminate)
    try:
        resolved = parse(argv)
        for warning in resolved.warnings:
            logging.warning("%s", warning)
        if resolved.config.dry_run:
            write_line(json.dumps(resolved.config.as_dict(), indent=2))
            return 0
        return _train(resolved.config)
    except HelpWanted as wanted:
        write_line(str(wanted))
        return 0
    except (UsageError, DataError) as error:
        sys.stderr.write(f"main.py: error: {error}\n")
        return EXIT_USAGE
    except KeyboardInterrupt:
        sys.stderr.write("main.py: interrupted; --resume continues this run\n")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output is gone; nothing more can be said to them.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILURE


def load_data(config: ExperimentConfig) -> FederatedData:
    """The data set, dealt to the clients.

    Raises:
        DataError: if it cannot be had or does not suffice.
        UsageError: if a client gets too few unlabelled images for an episode.
    """
    data = partition(
        load_dataset(config.dataset, config.data_dir or None), partition_spec(config)
    )
    for note in data.notes:
        logging.info("%s", note)
    fewest = min(len(c.unlabeled) for c in data.clients)
    if config.method == "protofssl" and config.q_unlabel > fewest:
        raise UsageError(
            f"--q_unlabel: found {config.q_unlabel}, a client has only {fewest} "
            "unlabelled images in this split"
        )
    return data


def partition_spec(config: ExperimentConfig) -> PartitionSpec:
    """The partition's part of the configuration."""
    return PartitionSpec(
        dataset=config.dataset,
        num_client=config.num_client,
        num_label=config.num_label,
        num_unlabel=config.num_unlabel,
        non_iid=config.non_iid,
        extreme_non_iid=config.extreme_non_iid,
        supervised=config.method == "fedavg",
        split_seed=config.split_seed,
        unlabeled_overlap=config.unlabeled_overlap,
        deal_order=config.deal_order,
        class_counts=config.class_counts,
        dirichlet_alpha=config.dirichlet_alpha,
    )


def make_setup(config: ExperimentConfig, data: FederatedData) -> Any:
    """What the method is made from; imports TensorFlow."""
    from fl.methods import REGISTRY
    from fl.methods.base import Setup
    from models.builder import build_model
    from models.init import initial_weights

    image_shape = data.images.shape[1:]
    has_head = REGISTRY[config.method].has_head

    def model_fn() -> Any:
        return build_model(
            config.model,
            image_shape,
            norm=config.bn_type,
            num_classes=data.num_classes if has_head else None,
        )

    weights = initial_weights(model_fn(), config.init, config.seed)
    return Setup(
        config=config, data=data, model_fn=model_fn, initial_weights=tuple(weights)
    )


def _train(config: ExperimentConfig) -> int:
    with RunFolder(config) as folder:
        data = load_data(config)
        _quiet_tensorflow(config.threads)
        from fl import experiment
        from fl.methods import make_method
        from fl.runtime import RuntimeFailure, Worker

        folder.begin()
        try:
            with Worker(folder.worker_log, threads=config.threads):
                method = make_method(make_setup(config, data))
                experiment.run(config, method, folder)
        except RuntimeFailure as error:
            sys.stderr.write(f"main.py: error: {error}\n")
            return EXIT_FAILURE
    return 0


def _set_up_logging() -> None:
    logging.use_absl_handler()
    logging.set_verbosity(logging.INFO)
    standard_logging.getLogger("tensorflow").setLevel(standard_logging.ERROR)


def _quiet_tensorflow(threads: int) -> None:
    """Settings TensorFlow reads when it is imported."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    if threads > 0:
        os.environ["TF_NUM_INTRAOP_THREADS"] = str(threads)


def _on_terminate(number: int, frame: Any) -> None:
    del number, frame
    sys.exit(EXIT_TERMINATED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
