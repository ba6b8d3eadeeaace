"""Tests of a run's folder: what may be touched, when, and by whom."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import attr
import pytest

from fl.run_folder import (
    LOCK_NAME,
    PACKAGES,
    FolderLost,
    RunFolder,
    depends_on_num_round,
    read_config,
)
from flags.config import ExperimentConfig
from flags.errors import UsageError
from flags.resolve import resolve


def _config(out_dir: Path, **changes: Any) -> ExperimentConfig:
    return ExperimentConfig(out_dir=str(out_dir), exp_name="run", **changes)


def _begin(config: ExperimentConfig) -> Path:
    """A run that began and ended; returns its folder."""
    with RunFolder(config) as folder:
        folder.begin("data")
    return folder.path


def _refusal(config: ExperimentConfig) -> str:
    with pytest.raises(UsageError) as caught:
        RunFolder(config)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def _tree(folder: Path) -> dict[str, bytes]:
    """Every file below, with its content; the lock has none worth comparing."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != LOCK_NAME
    }


def test_config_file_holds_the_flags_and_versions(tmp_path: Path) -> None:
    config = _config(tmp_path, seed=7, opt_lr=0.25)
    content = json.loads((_begin(config) / "config.json").read_text())
    assert content["config"] == dict(config.as_dict())
    assert content["python"] == platform.python_version()
    assert set(content["packages"]) == set(PACKAGES)
    assert all(content["packages"].values())
    assert content["git_commit"] is None or len(content["git_commit"]) == 40


def test_read_config_gives_back_what_was_written(tmp_path: Path) -> None:
    config = _config(tmp_path, mu=1e-7, non_iid=True)
    assert read_config(_begin(config) / "config.json") == config.as_dict()


def test_folder_is_removed_again_where_no_run_began(tmp_path: Path) -> None:
    with RunFolder(_config(tmp_path)) as folder:
        assert folder.path.is_dir()
    assert list(tmp_path.iterdir()) == []


def test_folder_is_removed_again_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), RunFolder(_config(tmp_path)):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_folder_stays_once_the_run_began(tmp_path: Path) -> None:
    path = _begin(_config(tmp_path / "deep" / "er"))
    assert path == tmp_path / "deep" / "er" / "run"
    assert (path / "config.json").is_file()


def test_empty_folder_of_the_user_can_be_used(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    assert (_begin(_config(tmp_path)) / "config.json").is_file()


def test_existing_run_needs_a_word_about_it(tmp_path: Path) -> None:
    path = _begin(_config(tmp_path))
    before = _tree(path)
    refusal = _refusal(_config(tmp_path))
    assert refusal.startswith(f"--exp_name: found a run in {path}; ")
    assert "--resume" in refusal
    assert "--overwrite" in refusal
    assert _tree(path) == before


@pytest.mark.parametrize("word", ["plain", "resume", "overwrite"])
def test_folder_of_something_else_is_never_touched(tmp_path: Path, word: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("mine")
    changes = {} if word == "plain" else {word: True}
    assert "no run of ours" in _refusal(_config(tmp_path, **changes))
    assert os.listdir(tmp_path / "run") == ["thesis.tex"]


def test_resume_of_the_same_run_changes_nothing(tmp_path: Path) -> None:
    path = _begin(_config(tmp_path))
    (path / "metrics.csv").write_text("rows")
    _begin(_config(tmp_path, resume=True))
    assert (path / "metrics.csv").read_text() == "rows"


def test_resume_without_a_run_starts_one(tmp_path: Path) -> None:
    assert (_begin(_config(tmp_path, resume=True)) / "config.json").is_file()


def test_resume_names_every_flag_that_differs(tmp_path: Path) -> None:
    path = _begin(_config(tmp_path, seed=1, mu=0.5))
    before = _tree(path)
    refusal = _refusal(_config(tmp_path, seed=2, mu=0.25, resume=True))
    assert refusal.startswith("--resume: ")
    assert "--seed was 1, now 2" in refusal
    assert "--mu was 0.5, now 0.25" in refusal
    assert refusal.count(" was ") == 2
    assert _tree(path) == before


@pytest.mark.parametrize(
    "change",
    [
        {"threads": 3},
        {"keep_checkpoints": 9},
        {"print_log": True},
        {"comp_dist": True},
        {"bn": True},
    ],
)
def test_resume_allows_what_does_not_describe_the_run(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    path = _begin(_config(tmp_path))
    _begin(_config(tmp_path, resume=True, **change))
    (name,) = change
    assert read_config(path / "config.json")[name] == change[name]


def test_resume_with_the_folder_named_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _begin(_config(tmp_path))
    monkeypatch.chdir(tmp_path)
    _begin(_config(Path("."), resume=True))


def test_rounds_may_grow_but_not_shrink(tmp_path: Path) -> None:
    path = _begin(_config(tmp_path, num_round=10))
    assert "--num_round was 10, now 9" in _refusal(
        _config(tmp_path, num_round=9, resume=True)
    )
    _begin(_config(tmp_path, num_round=11, resume=True))
    assert read_config(path / "config.json")["num_round"] == 11


def test_rounds_may_not_grow_where_the_rate_depends_on_them(tmp_path: Path) -> None:
    """The cosine rate is a function of r / R: with a larger R, round 1 differs."""
    _begin(_config(tmp_path, num_round=10, method="fedavg", baseline_lr="cosine"))
    refusal = _refusal(
        _config(
            tmp_path, num_round=11, method="fedavg", baseline_lr="cosine", resume=True
        )
    )
    assert "--num_round was 10, now 11" in refusal


@pytest.mark.parametrize(
    ("method", "rate", "depends"),
    [
        ("fedavg", "cosine", True),
        ("fedavg", "constant", False),
        ("protofssl", "cosine", False),
        ("protofssl", "constant", False),
    ],
)
def test_who_depends_on_the_number_of_rounds(
    method: str, rate: str, depends: bool
) -> None:
    config = ExperimentConfig(method=method, baseline_lr=rate)
    assert depends_on_num_round(config) is depends


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[]", b"{}", b'{"config": 3}', b"\xff\xfe", b'{"config": [1]}'),
        100_000 * b"[",
    ],
    ids=range(8),
)
def test_damaged_configuration_is_one_line(tmp_path: Path, content: bytes) -> None:
    path = _begin(_config(tmp_path))
    (path / "config.json").write_bytes(content)
    refusal = _refusal(_config(tmp_path, resume=True))
    assert refusal.startswith(f"{path / 'config.json'}: cannot be read")
    assert (path / "config.json").read_bytes() == content


def test_configuration_with_a_damaged_value_is_one_line(tmp_path: Path) -> None:
    path = _begin(_config(tmp_path))
    (path / "config.json").write_text('{"config": {"num_round": "many"}}')
    assert "--num_round was many, now 300" in _refusal(_config(tmp_path, resume=True))


def test_overwrite_removes_nothing_before_the_run_begins(tmp_path: Path) -> None:
    path = _begin(_config(tmp_path, seed=1))
    (path / "metrics.csv").write_text("rows")
    before = _tree(path)
    with RunFolder(_config(tmp_path, seed=2, overwrite=True)):
        assert _tree(path) == before
    assert _tree(path) == before


def test_overwrite_clears_the_run_and_nothing_else(tmp_path: Path) -> None:
    path = _begin(_config(tmp_path, seed=1))
    for own in (
        *("metrics.csv", "clients.csv", "summary.json", "curves.png", "worker.log"),
        *("model.npz", "model.keras"),
        *("checkpoints/round_000001.npz", "tensorboard/events.out.tfevents.1"),
    ):
        (path / own).parent.mkdir(exist_ok=True)
        (path / own).write_text("old")
    (path / "notes.txt").write_text("mine")
    (tmp_path / "sibling").write_text("other run")
    with RunFolder(_config(tmp_path, seed=2, overwrite=True)) as folder:
        folder.begin("data")
        assert sorted(_tree(path)) == ["config.json", "notes.txt", "worker.log"]
        assert (path / "worker.log").read_text() == ""
    assert read_config(path / "config.json")["seed"] == 2
    assert (tmp_path / "sibling").read_text() == "other run"


def test_overwrite_replaces_a_damaged_run(tmp_path: Path) -> None:
    path = _begin(_config(tmp_path))
    (path / "config.json").write_text("{")
    _begin(_config(tmp_path, seed=3, overwrite=True))
    assert read_config(path / "config.json")["seed"] == 3


def test_overwrite_follows_no_link_out_of_the_folder(tmp_path: Path) -> None:
    path = _begin(_config(tmp_path))
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "data").write_text("kept")
    (path / "checkpoints").symlink_to(tmp_path / "precious")
    _begin(_config(tmp_path, overwrite=True))
    assert not (path / "checkpoints").exists()
    assert (tmp_path / "precious" / "data").read_text() == "kept"


def test_leftovers_of_a_killed_run_go_when_it_resumes(tmp_path: Path) -> None:
    path = _begin(_config(tmp_path))
    leftover = path / f".metrics.{'0' * 16}.unfinished.csv"
    leftover.write_text("half")
    with RunFolder(_config(tmp_path, resume=True)) as folder:
        assert leftover.exists()
        folder.begin("data")
        assert not leftover.exists()


def test_folder_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    with RunFolder(_config(tmp_path)) as folder:
        folder.begin("data")
        for word in ("resume", "overwrite"):
            refusal = _refusal(_config(tmp_path, **{word: True}))
            assert "in use by another process" in refusal
            assert refusal.startswith("--exp_name: ")
    _begin(_config(tmp_path, resume=True))


def test_refused_second_process_leaves_the_first_its_lock(tmp_path: Path) -> None:
    """The refusal must neither unlink the lock nor let a third process in."""
    with RunFolder(_config(tmp_path)):
        for _ in range(2):
            _refusal(_config(tmp_path))
        assert (tmp_path / "run" / LOCK_NAME).exists()


def test_refusal_leaves_no_file_open(tmp_path: Path) -> None:
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    with RunFolder(_config(tmp_path)):
        before = open_files()
        _refusal(_config(tmp_path))
        assert open_files() == before


def test_lock_dies_with_its_process(tmp_path: Path) -> None:
    """A killed run must not lock its user out: the kernel drops the flock."""
    path = _begin(_config(tmp_path))
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX);"
            "sys.stdout.write('held\\n'); sys.stdout.flush(); sys.stdin.read()",
            str(path / LOCK_NAME),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == "held\n"
        assert "in use" in _refusal(_config(tmp_path, resume=True))
    finally:
        holder.kill()
        holder.wait()
        holder.stdin.close()
        holder.stdout.close()
    _begin(_config(tmp_path, resume=True))


def test_run_that_began_meanwhile_is_not_overrun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process begins and ends its run between our look and our lock."""
    flock = fcntl.flock

    def late_flock(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        _begin(_config(tmp_path, seed=2))
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late_flock)
    assert "found a run" in _refusal(_config(tmp_path, seed=1))
    assert read_config(tmp_path / "run" / "config.json")["seed"] == 2


def test_lock_that_was_removed_meanwhile_is_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder removes the empty folder, and with it the file we wait for."""
    flock = fcntl.flock
    holder = RunFolder(_config(tmp_path))

    def late_flock(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        holder.__exit__(None, None, None)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late_flock)
    assert "in use by another process" in _refusal(_config(tmp_path))


def test_out_dir_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("kept")
    for out_dir in (file, file / "below", tmp_path / ("a" * 300)):
        refusal = _refusal(_config(out_dir))
        assert refusal.startswith("--out_dir: ")
        assert str(out_dir) in refusal
    assert file.read_text() == "kept"
    assert os.listdir(tmp_path) == ["file"]


def test_file_in_the_place_of_the_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("kept")
    assert _refusal(_config(tmp_path)).startswith("--out_dir: found a file at ")
    assert (tmp_path / "run").read_text() == "kept"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_out_dir_is_one_line(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    refusal = _refusal(_config(tmp_path / "runs"))
    assert "cannot be written (Permission denied)" in refusal


@pytest.mark.parametrize(
    "field", attr.fields(ExperimentConfig), ids=lambda field: field.name
)
def test_resume_notices_a_change_of_every_describing_field(
    tmp_path: Path, field: Any
) -> None:
    base = _config(tmp_path)
    _begin(base)
    value = getattr(base, field.name)
    if isinstance(value, bool):
        other: Any = not value
    else:
        other = value + "x" if isinstance(value, str) else value - 0.5
    changed = attr.evolve(base, **{field.name: other, "resume": True})
    if field.metadata["describes_run"] and field.name != "exp_name":
        assert f": --{field.name} was {value}, now {other}" in _refusal(changed)
    else:
        RunFolder(changed).__exit__(None, None, None)


@pytest.mark.parametrize("flag", ["resume", "overwrite"])
def test_a_kill_before_the_configuration_stood_leaves_no_dead_end(
    tmp_path: Path, flag: str
) -> None:
    """An unfinished config.json alone is no run, and in nobody's way."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".config.0123456789abcdef.unfinished.json").write_text("{")
    given = {"out_dir": str(tmp_path), "exp_name": "run", flag: True}
    with RunFolder(resolve(given).config) as opened:
        opened.begin("data")
    assert sorted(p.name for p in folder.iterdir()) == [".lock", "config.json"]


def test_a_folder_that_another_run_took_over_keeps_its_lock(tmp_path: Path) -> None:
    """Removed under the first run, begun anew by a second; then the first ends."""
    config = _config(tmp_path)
    with RunFolder(config) as first:
        first.begin("data")
        shutil.rmtree(first.path)
        with RunFolder(config) as second:
            first.__exit__(None, None, None)
            second.check_held()


@pytest.mark.parametrize("successor", [False, True])
def test_a_folder_that_went_before_the_run_began_is_not_touched(
    tmp_path: Path, successor: bool
) -> None:
    """While a run loaded its data, its folder was removed; another may have it now."""
    with RunFolder(_config(tmp_path, overwrite=True)) as first:
        shutil.rmtree(first.path)
        if successor:
            _begin(_config(tmp_path))
        before = _tree(first.path)
        with pytest.raises(FolderLost, match="removed or replaced"):
            first.begin("data")
    assert _tree(first.path) == before
    assert first.path.exists() == successor


def test_overwrite_follows_no_link_of_a_log(tmp_path: Path) -> None:
    path = _begin(_config(tmp_path))
    (tmp_path / "precious").write_text("kept")
    (path / "worker.log").symlink_to(tmp_path / "precious")
    _begin(_config(tmp_path, overwrite=True))
    assert (tmp_path / "precious").read_text() == "kept"


def test_resume_with_other_data_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    path = _begin(_config(tmp_path))
    (path / "summary.json").write_text("{}")
    before = _tree(path)
    refusal = "--resume: .*--dataset=digits.*--data_dir"
    with (
        RunFolder(_config(tmp_path, resume=True)) as folder,
        pytest.raises(UsageError, match=refusal),
    ):
        folder.begin("other data")
    assert _tree(path) == before


def test_a_run_from_before_data_was_named_may_go_on(tmp_path: Path) -> None:
    path = _begin(_config(tmp_path))
    content = json.loads((path / "config.json").read_text())
    del content["data_sha256"]
    (path / "config.json").write_text(json.dumps(content))
    _begin(_config(tmp_path, resume=True))
    assert json.loads((path / "config.json").read_text())["data_sha256"] == "data"


@pytest.mark.parametrize("word", ["resume", "overwrite"])
def test_a_config_file_of_something_else_protects_its_folder(
    tmp_path: Path, word: str
) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "config.json").write_text('{"hidden_size": 768}')
    assert "no run of ours" in _refusal(_config(tmp_path, **{word: True}))
    assert (tmp_path / "run" / "checkpoints").is_dir()


def test_output_of_a_worker_that_did_not_start_is_kept_and_in_no_way(
    tmp_path: Path,
) -> None:
    for _ in range(2):
        with RunFolder(_config(tmp_path)) as folder:
            folder.worker_log.write_text("why")
        assert os.listdir(tmp_path / "run") == ["worker.log"]
    assert (_begin(_config(tmp_path)) / "config.json").is_file()


def test_a_worker_that_said_nothing_leaves_nothing(tmp_path: Path) -> None:
    """As when a start is interrupted."""
    with RunFolder(_config(tmp_path)) as folder:
        folder.worker_log.touch()
    assert not os.listdir(tmp_path)


def test_a_pipe_for_a_configuration_is_not_read(tmp_path: Path) -> None:
    path = _begin(_config(tmp_path))
    (path / "config.json").unlink()
    os.mkfifo(path / "config.json")
    assert "cannot be read" in _refusal(_config(tmp_path, resume=True))
