"""From a configuration to what a run is made of: data, network, method.

TensorFlow is imported only when a network or a method is asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, List

from absl import logging

from data.partition import FederatedData, PartitionSpec, partition
from data.sources import DataError, load_dataset
from flags.config import ExperimentConfig
from flags.errors import UsageError
from flags.presets import METHODS
from flags.workers import parse_workers

if TYPE_CHECKING:
    from fl.methods.base import Method
    from fl.workers import Worker


def load_data(config: ExperimentConfig) -> FederatedData:
    """The data set, dealt to the clients.

    Raises:
        UsageError: if it cannot be had or does not suffice.
    """
    try:
        raw = load_dataset(config.dataset, config.data_dir or None)
        data = partition(raw, partition_spec(config))
    except DataError as error:
        raise UsageError(str(error)) from None
    for note in data.notes:
        logging.info("%s", note)
    fewest = min(len(client.unlabeled) for client in data.clients)
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
        supervised=METHODS[config.method].supervised,
        split_seed=config.split_seed,
        unlabeled_overlap=config.unlabeled_overlap,
        deal_order=config.deal_order,
        class_counts=config.class_counts,
        dirichlet_alpha=config.dirichlet_alpha,
    )


def make_workers(config: ExperimentConfig, log_path: Path) -> List[Worker]:
    """The workers that the configuration names, not yet started.

    Args:
        config: the run's configuration.
        log_path: where the output of workers on this machine goes.

    Raises:
        UsageError: if a certificate cannot be used.
    """
    from fl import tls
    from fl.workers import LocalWorker, RemoteWorker

    wanted = parse_workers(config.workers)
    if wanted.local:
        return [
            LocalWorker(log_path, config.concurrent_clients)
            for _ in range(wanted.local)
        ]
    if wanted.across_network and not config.worker_ca:
        logging.warning(
            "--workers: weights and images pass unprotected to %s, and whoever "
            "answers there is trusted; --worker_ca makes it TLS",
            ", ".join(wanted.across_network),
        )
    try:
        certificates = (
            tls.read(config.worker_ca, config.worker_cert, config.worker_key)
            if config.worker_ca
            else None
        )
    except tls.CertificateError as error:
        raise UsageError(str(error)) from None
    return [RemoteWorker(address, certificates) for address in wanted.addresses]


def model_fn(
    config: ExperimentConfig, data: FederatedData, has_head: bool
) -> Callable[[], Any]:
    """What builds the network that the configuration names."""
    from models.builder import build_model

    height, width, channels = data.images.shape[1:]
    return lambda: build_model(
        config.model,
        (height, width, channels),
        norm=config.bn_type,
        use_bias=config.conv_bias,
        num_classes=data.num_classes if has_head else None,
    )


def make_method(config: ExperimentConfig, data: FederatedData) -> Method:
    """The method that the configuration names, with its initial weights."""
    from fl.methods import method_class
    from fl.methods.base import Setup
    from models.init import initial_weights

    kind = method_class(config.method)
    build = model_fn(config, data, kind.has_head)
    weights = initial_weights(build(), config.init, config.seed)
    return kind(
        Setup(config=config, data=data, model_fn=build, initial_weights=tuple(weights))
    )
