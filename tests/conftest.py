"""Fixtures that several tests share: a worker, and small federations on real digits."""

from __future__ import annotations

import functools
import signal
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping

import numpy as np
import pytest

from fl import environment, signals

environment.prepare_tensorflow()
# A shell starts what runs in its background with SIGINT ignored, and programs that the
# tests start would inherit that; a handler does not pass on to them.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def own_signals() -> Iterator[None]:
    """For tests of what takes over signals: afterwards all is as before."""
    handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
    signals._seen.clear()


@pytest.fixture(scope="session")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """TFF's real runtime, one process for all tests that need it."""
    from fl.runtime import Runtime
    from fl.workers import LocalWorker

    log_path = tmp_path_factory.mktemp("worker") / "worker.log"
    with Runtime([LocalWorker(log_path)]) as running:
        yield running


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[Any]:
    """The same with a process of one's own, which may come to harm."""
    from fl.runtime import Runtime
    from fl.workers import LocalWorker

    with Runtime([LocalWorker(tmp_path / "worker.log")]) as running:
        yield running


def local_worker(runtime: Any) -> Any:
    """The only worker of such a runtime."""
    from fl.workers import LocalWorker

    [found] = runtime.workers
    assert isinstance(found, LocalWorker)
    return found


def tiny_model() -> Any:
    """A network with all kinds of weights that trains in milliseconds."""
    import tensorflow as tf

    image = tf.keras.Input([8, 8, 1])
    x = tf.keras.layers.Conv2D(4, 3, strides=2, name="conv")(image)
    x = tf.keras.layers.BatchNormalization(name="bn")(x)
    x = tf.keras.layers.ReLU(name="relu")(x)
    return tf.keras.Model(image, tf.keras.layers.Flatten(name="flatten")(x))


def make_batch() -> Any:
    """Four labelled and five unlabelled images of noise."""
    import tensorflow as tf

    from fl.methods.steps import Batch

    rng = np.random.RandomState(1)
    return Batch(
        labeled_x=tf.constant(rng.rand(4, 8, 8, 1), tf.float32),
        labeled_y=tf.constant([0, 2, 4, 6]),
        unlabeled_x=tf.constant(rng.rand(5, 8, 8, 1), tf.float32),
        unlabeled_y=tf.constant([0, 1, 2, 3, 4]),
        unlabeled_y_known=tf.constant(True),
        seed=tf.constant([3, 4]),
    )


def tiny_classifier() -> Any:
    """The same with a dense layer."""
    import tensorflow as tf

    body = tiny_model()
    return tf.keras.Model(
        body.input, tf.keras.layers.Dense(10, name="dense")(body.output)
    )


def tiny_kernels() -> Any:
    """A classifier of kernels alone, for methods whose networks have nothing else."""
    import tensorflow as tf

    image = tf.keras.Input([8, 8, 1])
    x = tf.keras.layers.Conv2D(4, 3, strides=2, use_bias=False, activation="relu")(
        image
    )
    x = tf.keras.layers.Flatten()(x)
    return tf.keras.Model(image, tf.keras.layers.Dense(10, use_bias=False)(x))


SMALL: Mapping[str, Any] = {
    "dataset": "digits",
    "num_client": 6,
    "num_active_client": 3,
    "num_label": 5,
    "num_unlabel": 50,
    "q_unlabel": 20,
    "helper_cnt": 3,
    "local_episode": 2,
    "num_round": 3,
    "seed": 5,
}


@pytest.fixture(scope="session")
def make_small(worker: Any) -> Callable[..., Any]:
    """Makes a method on a tiny network over real digits: make_small(flag=...)."""
    from fl import wiring
    from fl.methods import method_class
    from fl.methods.base import Setup
    from flags.resolve import resolve

    @functools.cache  # A method is a pure thing; tracing takes long.
    def make(**given: Any) -> Any:
        config = resolve({**SMALL, **given}).config
        kind = method_class(config.method)
        model_fn = tiny_classifier if kind.has_head else tiny_model
        if not config.conv_bias:
            model_fn = tiny_kernels
        rng = np.random.RandomState(config.seed)
        weights = tuple(
            rng.normal(0, 0.3, w.shape).astype(np.float32) if w.ndim > 1 else w
            for w in model_fn().get_weights()
        )
        return kind(
            Setup(
                config=config,
                data=wiring.load_data(config),
                model_fn=model_fn,
                initial_weights=weights,
            )
        )

    return make


@pytest.fixture
def run_small(make_small: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """Runs a small experiment: run_small(name, flag=...) -> its folder."""
    from fl import experiment
    from fl.run_folder import RunFiles, RunFolder
    from flags.resolve import resolve

    def run(name: str, **given: Any) -> RunFiles:
        loop_only = {"num_round", "eval_every", "resume"}
        method = make_small(**{k: v for k, v in given.items() if k not in loop_only})
        flags = {**SMALL, **given, "exp_name": name, "out_dir": str(tmp_path)}
        config = resolve(flags).config
        with RunFolder(config) as folder:
            experiment.run(config, method, folder)
        return RunFiles(folder.path)

    return run


def assert_same_state(first: Any, second: Any) -> None:
    """Holds two server states against each other, bit for bit."""
    from fl import states

    left, right = states.to_arrays(first), states.to_arrays(second)
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where the recorded runs are; without it the tests marked `reference` skip."""
    parser.addoption(
        "--reference-dir",
        default=None,
        help="folder of JSON files recorded from the authors' program",
    )
