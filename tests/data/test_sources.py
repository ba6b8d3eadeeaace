"""Loading datasets: files of the user, the cache, and every way to be wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any, Optional

import attr
import numpy as np
import pytest

from data import fetch
from data.sources import DATASETS, DataError, RawDataset, load_dataset


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts the cache into the test's own folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    return tmp_path / "xdg" / "protofssl"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Returns an empty folder for --data_dir."""
    path = tmp_path / "mine"
    path.mkdir()
    return path


class LocalWay:
    """A way that writes a file, counts its calls, and can be made to fail."""

    def __init__(self, arrays: fetch.Arrays) -> None:
        self.arrays = arrays
        self.calls = 0
        self.failure: Optional[BaseException] = None

    def __call__(self, folder: Path) -> Path:
        self.calls += 1
        path = fetch.save_arrays(folder / "cifar10.npz", self.arrays)
        if self.failure is not None:
            path.write_bytes(path.read_bytes()[:1000])
            raise self.failure
        return path


@pytest.fixture
def way(monkeypatch: pytest.MonkeyPatch) -> LocalWay:
    """Lets CIFAR-10 come from a local way."""
    local = LocalWay(_arrays())
    entry = attr.evolve(DATASETS["cifar10"], ways=(local,))
    monkeypatch.setitem(DATASETS, "cifar10", entry)
    return local


def _arrays(name: str = "cifar10", train: int = 30, test: int = 20) -> fetch.Arrays:
    generator = np.random.default_rng(0)
    info = DATASETS[name]

    def images(size: int) -> np.ndarray:
        return generator.integers(0, 256, (size, *info.image_shape), np.uint8)

    def labels(size: int) -> np.ndarray:
        return (np.arange(size) % info.num_classes).astype(np.uint8)

    arrays = {"x_train": images(train), "y_train": labels(train)}
    arrays.update(x_test=images(test), y_test=labels(test))
    if info.has_unlabeled:
        arrays["x_unlabeled"] = images(5)
    return arrays


def _load(
    folder: Path, arrays: dict[str, Any], name: str = "cifar10", **changes: Any
) -> RawDataset:
    """Writes the arrays, with changes (None removes a part), and loads them."""
    parts = {**arrays, **changes}
    parts = {key: value for key, value in parts.items() if value is not None}
    np.savez(folder / f"{name}.npz", **parts)
    return load_dataset(name, str(folder))


def _refusal(folder: Path, name: str = "cifar10", **changes: Any) -> str:
    """Returns the line that loading a changed file ends in."""
    with pytest.raises(DataError) as caught:
        _load(folder, _arrays(name), name, **changes)
    line = str(caught.value)
    assert "\n" not in line
    assert str(folder / f"{name}.npz") in line
    return line


def test_a_file_is_loaded_as_it_is(folder: Path, cache: Path) -> None:
    arrays = _arrays()
    raw = _load(folder, arrays)
    assert (raw.name, raw.num_classes, raw.x_unlabeled) == ("cifar10", 10, None)
    for key, value in arrays.items():
        np.testing.assert_array_equal(getattr(raw, key), value)
    assert raw.x_train.dtype == np.uint8
    assert raw.y_train.dtype == raw.y_test.dtype == np.int32
    assert not cache.exists()


def test_the_library_column_of_labels_and_compression_are_welcome(
    folder: Path,
) -> None:
    arrays = _arrays()
    arrays["y_train"] = arrays["y_train"].astype(np.int64)[:, np.newaxis]
    np.savez_compressed(folder / "cifar10.npz", **arrays)
    raw = load_dataset("cifar10", str(folder))
    np.testing.assert_array_equal(raw.y_train, arrays["y_train"][:, 0])


@pytest.mark.parametrize("absent", ["train", "test"])
def test_train_or_test_alone_will_do(folder: Path, absent: str) -> None:
    raw = _load(folder, _arrays(), **{f"x_{absent}": None, f"y_{absent}": None})
    assert getattr(raw, f"x_{absent}").shape == (0, 32, 32, 3)
    assert getattr(raw, f"y_{absent}").shape == (0,)
    assert len(raw.y_train) + len(raw.y_test) == (20 if absent == "train" else 30)


def test_stl10_has_unlabeled_images(folder: Path) -> None:
    raw = _load(folder, _arrays("stl10", 10, 10), "stl10", x_test=None, y_test=None)
    assert raw.x_unlabeled is not None
    assert raw.x_unlabeled.shape == (5, 96, 96, 3)


@pytest.mark.parametrize(
    ("name", "absent", "named"),
    [
        ("cifar10", ["y_train"], "lacks y_train;"),
        ("cifar10", ["x_train", "y_train", "x_test"], "lacks x_test;"),
        (
            "cifar10",
            ["x_train", "y_train", "x_test", "y_test"],
            "lacks x_train, y_train, x_test, y_test;",
        ),
        ("stl10", ["x_unlabeled"], "lacks x_unlabeled;"),
        ("stl10", ["x_test", "y_test", "x_unlabeled"], "lacks x_unlabeled;"),
    ],
)
def test_missing_parts_are_named(
    folder: Path, name: str, absent: list[str], named: str
) -> None:
    assert named in _refusal(folder, name, **dict.fromkeys(absent))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"x_train": np.zeros((30, 32, 32, 3), np.float32)},
            "x_train is of type float32; uint8 (0..255) would be right",
        ),
        (
            {"x_train": np.zeros((30, 3, 32, 32), np.uint8)},
            "x_train has shape (30, 3, 32, 32); (N, 32, 32, 3) would be right",
        ),
        (
            {"x_train": np.zeros(30, np.uint8)},
            "x_train has shape (30,); (N, 32, 32, 3) would be right",
        ),
        (
            {"y_train": np.zeros(30)},
            "y_train is of type float64; integers would be right",
        ),
        (
            {"y_train": np.zeros((30, 10), np.uint8)},
            "y_train has shape (30, 10); (N,) would be right",
        ),
        (
            {"y_train": np.zeros(29, np.uint8)},
            "x_train has 30 images, y_train 29 labels",
        ),
        (
            {"y_test": np.arange(1, 21) % 11},
            "y_test has labels 0..10; 0..9 would be right",
        ),
        ({"y_test": np.arange(20) - 1}, "y_test has labels -1..18; 0..9"),
        (
            {"y_train": np.array([None] * 30, object)},
            "y_train is of type object; integers would be right",
        ),
    ],
)
def test_wrong_arrays_are_refused(
    folder: Path, changes: dict[str, Any], message: str
) -> None:
    assert message in _refusal(folder, **changes)


def test_a_file_without_images_is_refused(folder: Path) -> None:
    empty: dict[str, Any] = _arrays(train=0, test=0)
    assert "holds no labelled images" in _refusal(folder, **empty)


class Hostile:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_a_pickle_is_never_run(folder: Path, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    _refusal(folder, x_train=np.array([Hostile(trap)], object))
    assert not trap.exists()


@pytest.mark.parametrize(
    "content",
    [b"", b"no archive", b"PK\x03\x04" + b"\0" * 100, b"\x93NUMPY\x01\x00"],
)
def test_a_file_that_is_no_archive_is_refused(folder: Path, content: bytes) -> None:
    (folder / "cifar10.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"cifar10\.npz: cannot be read"):
        load_dataset("cifar10", str(folder))


def test_a_damaged_pixel_is_noticed(folder: Path) -> None:
    """The archive carries a checksum of every part."""
    path = folder / "cifar10.npz"
    np.savez(path, **_arrays())
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(DataError, match="Bad CRC-32"):
        load_dataset("cifar10", str(folder))


def _write_header_only(path: Path, shape: tuple[int, ...]) -> None:
    """Writes a part that announces more than it holds."""
    header = {"descr": "|u1", "fortran_order": False, "shape": shape}
    with zipfile.ZipFile(path, "w") as archive:
        with archive.open("x_train.npy", "w") as file:
            np.lib.format.write_array_header_1_0(file, header)
        with archive.open("y_train.npy", "w") as file:
            np.lib.format.write_array(file, np.zeros(3, np.uint8))


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (10**12, "would take .* GiB; at"),
        (10, "cannot be read"),
        (-1, "N >= 0 would be"),
    ],
)
def test_a_header_that_lies_is_refused(folder: Path, size: int, message: str) -> None:
    _write_header_only(folder / "cifar10.npz", (size, 32, 32, 3))
    with pytest.raises(DataError, match=message):
        load_dataset("cifar10", str(folder))


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((10**6, 10**6), "cifar10.npz: would take 6 GiB; at most 4"),
        ((10**8, -(10**8)), r"x_test has shape \(-100000000, "),
    ],
)
def test_parts_that_fill_the_memory_together_are_refused(
    folder: Path, numbers: tuple[int, int], message: str
) -> None:
    """Each would do alone; what is below nothing does not make up for another."""
    with zipfile.ZipFile(folder / "cifar10.npz", "w") as archive:
        for part, number in zip(("x_train", "x_test"), numbers):
            shape = (number, 32, 32, 3)
            header = {"descr": "|u1", "fortran_order": False, "shape": shape}
            with archive.open(f"{part}.npy", "w") as file:
                np.lib.format.write_array_header_1_0(file, header)
    with pytest.raises(DataError, match=message):
        load_dataset("cifar10", str(folder))


def test_a_folder_in_place_of_the_file_is_refused(folder: Path) -> None:
    (folder / "cifar10.npz").mkdir()
    with pytest.raises(DataError, match="is no regular file"):
        load_dataset("cifar10", str(folder))


def test_an_unknown_dataset_is_refused() -> None:
    with pytest.raises(DataError, match="--dataset=mnist: unknown; one of cifar10, "):
        load_dataset("mnist")


def test_a_wrong_data_dir_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="--data_dir=.*/none: does not exist"):
        load_dataset("cifar10", str(tmp_path / "none"))
    with pytest.raises(DataError, match="--data_dir=.*/file: is no folder"):
        load_dataset("cifar10", str(tmp_path / "file"))
    for wrong in ("~nobody-of-that-name", "long" * 1000):
        with pytest.raises(DataError, match=f"^--data_dir={wrong[:20]}.*: .* right"):
            load_dataset("cifar10", wrong)


def test_digits_need_no_network_and_leave_no_file(cache: Path) -> None:
    """The first image's first row is 0 0 5 13 9 1 0 0 of 16."""
    raw = load_dataset("digits")
    assert raw.x_train.shape == (1797, 8, 8, 1)
    assert raw.x_test.shape == (0, 8, 8, 1)
    row = np.rint(np.array([0, 0, 5, 13, 9, 1, 0, 0]) * 255 / 16)
    np.testing.assert_array_equal(raw.x_train[0, 0, :, 0], row)
    np.testing.assert_array_equal(raw.y_train[:10], np.arange(10))
    assert raw.x_train.max() == 255
    assert list(cache.iterdir()) == []


def test_what_was_fetched_is_cached(way: LocalWay, cache: Path) -> None:
    first = load_dataset("cifar10")
    second = load_dataset("cifar10")
    assert way.calls == 1
    np.testing.assert_array_equal(first.x_train, second.x_train)
    assert [path.name for path in cache.iterdir()] == ["cifar10.npz"]


def test_the_users_file_comes_before_the_cache(way: LocalWay, folder: Path) -> None:
    load_dataset("cifar10")
    assert len(_load(folder, _arrays(train=7)).y_train) == 7
    assert way.calls == 1


def test_a_data_dir_without_the_file_leads_on(way: LocalWay, folder: Path) -> None:
    assert len(load_dataset("cifar10", str(folder)).y_train) == 30
    assert way.calls == 1


def test_a_damaged_cache_is_fetched_anew(
    way: LocalWay, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    load_dataset("cifar10")
    whole = (cache / "cifar10.npz").read_bytes()
    (cache / "cifar10.npz").write_bytes(whole[: len(whole) // 2])
    load_dataset("cifar10")
    assert way.calls == 2
    assert (cache / "cifar10.npz").read_bytes() == whole
    warnings = [r for r in caplog.records if r.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "The cache is damaged, fetching cifar10 anew" in warnings[0].getMessage()


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), fetch.FetchError("cut off")])
def test_a_download_cut_off_leaves_nothing(
    way: LocalWay, cache: Path, failure: BaseException
) -> None:
    way.failure = failure
    with pytest.raises((KeyboardInterrupt, DataError)):
        load_dataset("cifar10")
    assert list(cache.iterdir()) == []
    way.failure = None
    assert len(load_dataset("cifar10").y_train) == 30


def test_a_partial_file_of_a_killed_run_is_not_believed(
    way: LocalWay, cache: Path
) -> None:
    """A process that is killed cannot clean up: its workspace stays behind."""
    left = cache / ".partial-killed"
    left.mkdir(parents=True)
    (left / "cifar10.npz").write_bytes(b"PK\x03\x04 half an archive")
    assert len(load_dataset("cifar10").y_train) == 30
    assert way.calls == 1


def test_what_killed_runs_left_goes_after_a_day(
    way: LocalWay, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = cache / ".partial-killed"
    (left / "deep").mkdir(parents=True)
    load_dataset("cifar10")
    assert left.exists()
    (cache / "cifar10.npz").unlink()
    tomorrow = time.time() + 25 * 3600
    monkeypatch.setattr(time, "time", lambda: tomorrow)
    load_dataset("cifar10")
    assert [path.name for path in cache.iterdir()] == ["cifar10.npz"]


def test_a_fetched_file_that_is_wrong_is_not_cached(way: LocalWay, cache: Path) -> None:
    way.arrays["y_train"] = way.arrays["y_train"] + 5
    with pytest.raises(DataError, match="labels 5..14"):
        load_dataset("cifar10")
    assert list(cache.iterdir()) == []


def test_a_cache_that_cannot_be_made_does_not_stop_the_run(
    way: LocalWay, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache.parent.mkdir()
    cache.touch()
    assert len(load_dataset("cifar10").y_train) == 30
    assert "not cached" in caplog.text


def test_data_that_cannot_be_had_end_in_one_line(
    way: LocalWay, cache: Path, folder: Path
) -> None:
    way.failure = fetch.FetchError("no network")
    with pytest.raises(DataError) as caught:
        load_dataset("cifar10", str(folder))
    assert str(caught.value) == (
        f"--dataset=cifar10: not in {folder} and {cache}, and the download failed (no "
        "network); connect to the network, or pass --data_dir=FOLDER with "
        "FOLDER/cifar10.npz that holds uint8 x_train, y_train, x_test, y_test"
    )


def test_importing_is_light() -> None:
    """Heavy libraries load only when a dataset needs them."""
    program = (
        "import sys, data.sources, data.partition;"
        "sys.exit(any(m in sys.modules for m in ('tensorflow', 'sklearn', 'PIL')))"
    )
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", program], cwd=root).returncode == 0
