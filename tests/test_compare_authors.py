"""The comparison with the authors' program, on small files in its format."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

import pytest

from experiments import authors_runs, compare_authors
from experiments.authors_runs import Title
from fl.records import RoundRecord, write_rows
from flags.errors import UsageError

Lines = Sequence[Tuple[int, float, float]]

TRAIN: Lines = [(r, 0.1 * r, 3.0 - 0.1 * r) for r in range(1, 7)]
# Theirs evaluates late; the test file has the rounds that improved validation.
VAL: Lines = [(4, 0.30, 2.0), (5, 0.50, 1.5), (6, 0.40, 1.75)]
TEST: Lines = [(4, 0.25, 2.25), (5, 0.45, 1.625)]
SUMMARY = (
    "expname: base, time: 20220124 1646, dataset: cifar10, model: res9bn, "
    "maxround: 5, maxval: 0.500000, maxtest: 0.450000\n"
)


def write_theirs(
    folder: Path,
    stem: str = "base_20220124 1646",
    parts: Mapping[str, Lines] = {"train": TRAIN, "val": VAL, "test": TEST},  # noqa: B006
) -> Path:
    folder.mkdir(exist_ok=True)
    for part, lines in parts.items():
        text = "".join(f"{r},{accuracy},{loss}\n" for r, accuracy, loss in lines)
        (folder / f"{stem}_{part}_acc").write_text(text)
    return folder


def write_ours(folder: Path, shift: float = 0.125, every: int = 1) -> Path:
    """Four to six as theirs in training, `shift` above; evaluated every so often."""

    def evaluated(number: int) -> Dict[str, float]:
        if number % every:
            return {}
        return {
            "val_acc": 0.05 * number + shift,
            "val_loss": 1.0,
            "test_acc": 0.05 * number,
            "test_loss": 1.25,
        }

    rows = [
        RoundRecord(round=r, train_acc=acc + shift, train_loss=loss, **evaluated(r))
        for r, acc, loss in TRAIN
    ]
    folder.mkdir()
    write_rows(folder / "metrics.csv", rows)
    return folder


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    return write_theirs(tmp_path / "result")


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    return write_ours(tmp_path / "ours")


def table(path: Path) -> Dict[Tuple[str, int], Dict[str, str]]:
    with path.open() as file:
        return {(row["part"], int(row["round"])): row for row in csv.DictReader(file)}


# --- Reading --------------------------------------------------------------------------


def test_reads_lines_by_round(theirs: Path) -> None:
    run = authors_runs.read_theirs(theirs, Title("20220124 1646", "base"))
    assert {part: list(curve) for part, curve in run.curves.items()} == {
        "train": [1, 2, 3, 4, 5, 6],
        "val": [4, 5, 6],
        "test": [4, 5],
    }
    assert run.curves["val"][5] == authors_runs.Point(0.5, 1.5)
    assert run.best == 5
    assert run.accuracy("test", run.best) == 0.45


def test_the_first_of_equal_rounds_is_the_best(tmp_path: Path) -> None:
    """Theirs takes a strictly better one."""
    lines = [(1, 0.5, 1.0), (2, 0.5, 0.5), (3, 0.25, 2.0)]
    folder = write_theirs(tmp_path / "r", "a", dict.fromkeys(("train", "val"), lines))
    write_theirs(folder, "a", {"test": lines[:1]})
    assert authors_runs.read_theirs(folder, Title("", "a")).best == 1


def test_nan_is_no_damage_and_never_the_best(tmp_path: Path) -> None:
    """Theirs may turn to NaN."""
    folder = write_theirs(tmp_path / "r", "a")
    (folder / "a_val_acc").write_text("4,0.25,nan\n5,nan,nan\n")
    run = authors_runs.read_theirs(folder, Title("", "a"))
    assert run.best == 4
    assert list(run.curves["val"]) == [4, 5]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("7,0.5\n", "round,accuracy,loss"),
        ("7,0.5,1.0,2.0\n", "round,accuracy,loss"),
        ("7;0.5;1.0\n", "round,accuracy,loss"),
        ("7.5,0.5,1.0\n", "round,accuracy,loss"),
        ("7,half,1.0\n", "round,accuracy,loss"),
        ("\n", "round,accuracy,loss"),
        ("7,0.5,1.", "cut off"),
        ("6,0.5,1.0\n", "round 6"),
        ("7,53.2,1.0\n", "53.2"),
        ("7,-0.1,1.0\n", "-0.1"),
    ],
)
def test_a_damaged_line_is_named(
    line: str,
    told: str,
    theirs: Path,
    ours: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = theirs / "base_20220124 1646_val_acc"
    path.write_text(path.read_text() + line)
    assert compare_authors.main([f"--theirs={theirs}", f"--ours={ours}"]) == 2
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert f"{path} line 4" in errors
    assert told in errors


def test_rounds_count_from_one(theirs: Path) -> None:
    path = theirs / "base_20220124 1646_train_acc"
    path.write_text("0,0.1,1.0\n")
    with pytest.raises(UsageError, match="line 1: found round 0"):
        authors_runs.read_curve(path)


def test_a_training_accuracy_may_exceed_one_by_a_rounding(theirs: Path) -> None:
    path = theirs / "base_20220124 1646_train_acc"
    path.write_text("1,1.0000001192092896,0.5\n")
    assert authors_runs.read_curve(path)[1].accuracy > 1


def test_the_newest_is_taken(tmp_path: Path) -> None:
    """By time, whatever the name; the files of old editions have none."""
    folder = tmp_path / "r"
    for stem in ("zeta_20220124 1646", "alpha_20220301 0900", "zeta", "other"):
        write_theirs(folder, stem)
    (folder / "summary").write_text("")
    found = authors_runs.find_theirs(folder, None)
    assert found[-1] == Title("20220301 0900", "alpha")
    assert len(found) == 4
    assert authors_runs.find_theirs(folder, "zeta") == [
        Title("", "zeta"),
        Title("20220124 1646", "zeta"),
    ]


def test_names_with_underscores_and_the_words_of_parts(tmp_path: Path) -> None:
    stem = "test_val_acc_x_20220124 1646"
    folder = write_theirs(tmp_path / "r", stem)
    (title,) = authors_runs.find_theirs(folder, "test_val_acc_x")
    assert title.file_name("val") == f"{stem}_val_acc"
    assert authors_runs.read_theirs(folder, title).best == 5


def test_summary_is_found_where_lines_have_no_end(theirs: Path) -> None:
    other = SUMMARY.replace("base", "test").replace("0.450000", "0.990000").strip()
    (theirs / "summary").write_text(other + SUMMARY.strip() + other)
    title = Title("20220124 1646", "base")
    summary = authors_runs.read_summary(theirs, title)
    assert summary == authors_runs.Summary("cifar10", "res9bn", 5, 0.5, 0.45)
    assert summary.agrees_with(authors_runs.read_theirs(theirs, title))


@pytest.mark.parametrize(
    ("before", "after"),
    [("maxround: 5", "maxround: 4"), ("0.500000", "0.500002"), ("0.45", "0.46")],
)
def test_a_summary_that_does_not_agree(before: str, after: str, theirs: Path) -> None:
    (theirs / "summary").write_text(SUMMARY.replace(before, after))
    title = Title("20220124 1646", "base")
    summary = authors_runs.read_summary(theirs, title)
    assert summary is not None
    assert not summary.agrees_with(authors_runs.read_theirs(theirs, title))


# --- Comparing ------------------------------------------------------------------------


def test_tells_best_rounds_and_differences(
    theirs: Path, ours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ours is best in round 6: 0.05 * 6 + 0.125 = 42.5 %, test 30 %; theirs 45 %.

    Differences in round 5: 12.5 points in training, 37.5 - 50 in validation, 25 - 45
    in test; theirs has no test in round 6 and no evaluation before round 4.
    """
    (theirs / "summary").write_text(SUMMARY)
    out = tmp_path / "new" / "both.png"
    argv = ["--theirs", str(theirs), f"--ours={ours}", f"--out={out}"]
    assert compare_authors.main(argv) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "theirs (base, 20220124 1646): best validation in round 5 (50.00 %), test "
        "there 45.00 %"
    )
    assert lines[1].endswith("cifar10, res9bn, round 5 (50.00 %), test 45.00 %: agrees")
    assert lines[2] == (
        f"{ours}: best validation in round 6 (42.50 %), test there 30.00 %, "
        "-15.00 points"
    )
    cells = [line.split() for line in lines]
    assert ["3", "+12.50", "-", "-"] in cells
    assert ["5", "+12.50", "-12.50", "-20.00"] in cells
    assert ["6", "+12.50", "+2.50", "-"] in cells
    assert "  test: mean -12.50, widest -20.00 in round 5, over 2 rounds" in lines
    assert out.read_bytes()[:4] == b"\x89PNG"


def test_writes_the_rounds_that_both_have(
    theirs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ours is evaluated in rounds 2, 4 and 6, theirs in 4, 5 and 6."""
    ours = write_ours(tmp_path / "ours", every=2)
    out = tmp_path / "both.png"
    argv = [f"--theirs={theirs}", f"--ours={ours}", f"--out={out}"]
    assert compare_authors.main(argv) == 0
    rows = table(tmp_path / "both.csv")
    assert list(rows) == [
        *(("train", r) for r in range(1, 7)),
        ("val", 4),
        ("val", 6),
        ("test", 4),
    ]
    row = rows["val", 4]
    assert row["run"] == str(ours)
    assert (float(row["theirs_acc"]), float(row["ours_acc"])) == (0.3, 0.325)
    assert float(row["acc_difference"]) == pytest.approx(0.025)
    assert (float(row["theirs_loss"]), float(row["ours_loss"])) == (2.0, 1.0)
    assert float(row["loss_difference"]) == -1.0


def test_several_runs_of_ours(
    theirs: Path, ours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After one flag or with the flag repeated."""
    other = write_ours(tmp_path / "other", shift=0.0)
    third = write_ours(tmp_path / "third", shift=0.25)
    argv = [f"--theirs={theirs}", f"--ours={ours}", str(other), f"--ours={third}"]
    assert compare_authors.main([*argv, f"--out={tmp_path / 'x.png'}"]) == 0
    with (tmp_path / "x.csv").open() as file:
        runs = list(dict.fromkeys(row["run"] for row in csv.DictReader(file)))
    assert runs == [str(ours), str(other), str(third)]


def test_says_which_of_several_was_taken(
    theirs: Path, ours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_theirs(theirs, "base_20220125 0800", {"train": TRAIN, "val": [], "test": []})
    argv = [f"--theirs={theirs}", f"--ours={ours}", f"--out={tmp_path / 'x.png'}"]
    assert compare_authors.main(argv) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{theirs} holds 2 such runs; taken: base, 20220125 0800"
    assert lines[1] == "theirs (base, 20220125 0800): never evaluated"
    assert lines[2].endswith("test there 30.00 %")
    write_theirs(theirs, "older_20210101 0000")
    assert compare_authors.main([*argv, "--exp_name=older"]) == 0
    assert capsys.readouterr().out.startswith("theirs (older, 20210101 0000): best")


def test_no_round_in_common(
    theirs: Path, ours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    late = [(10, 0.5, 1.0)]
    write_theirs(theirs, parts={"train": late, "val": late, "test": late})
    argv = [f"--theirs={theirs}", f"--ours={ours}", f"--out={tmp_path / 'x.png'}"]
    assert compare_authors.main(argv) == 0
    assert "  no round in common" in capsys.readouterr().out.splitlines()
    assert table(tmp_path / "x.csv") == {}


def joined(part: str, number: int, gap: float = 0.01) -> authors_runs.Joined:
    theirs, ours = authors_runs.Point(0.5, 1.0), authors_runs.Point(0.5 + gap, None)
    return authors_runs.Joined(part, number, theirs, ours)


def test_of_many_rounds_the_fullest_are_shown() -> None:
    """All rounds with a test accuracy, then those with validation; 20 lines."""
    rows = [joined("train", r) for r in range(1, 301)]
    rows += [joined("val", r) for r in range(101, 301)]
    rows += [joined("test", r) for r in (101, 150, 299)]
    lines = list(compare_authors.difference_lines(rows))
    shown = [line.split() for line in lines[1:21]]
    numbers = [int(cells[0]) for cells in shown]
    assert {101, 150, 299, 300} <= set(numbers)
    assert min(numbers) == 101
    assert numbers == sorted(set(numbers))
    assert lines[21] == "(20 of 300 rounds; the CSV file has all)"
    assert lines[22].endswith("over 300 rounds")


def test_nan_stays_out_of_the_means() -> None:
    rows = [joined("train", 1, 0.5), joined("train", 2, float("nan"))]
    lines = list(compare_authors.difference_lines(rows))
    assert lines[-1] == "training: mean +50.00, widest +50.00 in round 1, over 1 rounds"
    assert lines[2].split() == ["2", "+nan", "-", "-"]


# --- Mistakes -------------------------------------------------------------------------


def no_folder(theirs: Path, ours: Path) -> List[str]:
    return [f"--theirs={theirs}x", f"--ours={ours}"]


def file_as_folder(theirs: Path, ours: Path) -> List[str]:
    return [f"--theirs={ours / 'metrics.csv'}", f"--ours={ours}"]


def no_result_files(theirs: Path, ours: Path) -> List[str]:
    return [f"--theirs={ours}", f"--ours={ours}"]


def wrong_name(theirs: Path, ours: Path) -> List[str]:
    return [f"--theirs={theirs}", f"--ours={ours}", "--exp_name=best"]


def part_missing(theirs: Path, ours: Path) -> List[str]:
    (theirs / "base_20220124 1646_test_acc").unlink()
    return [f"--theirs={theirs}", f"--ours={ours}"]


def no_text(theirs: Path, ours: Path) -> List[str]:
    (theirs / "base_20220124 1646_test_acc").write_bytes(b"\xff\xfe1")
    return [f"--theirs={theirs}", f"--ours={ours}"]


def no_metrics(theirs: Path, ours: Path) -> List[str]:
    (ours / "metrics.csv").unlink()
    return [f"--theirs={theirs}", f"--ours={ours}"]


def damaged_metrics(theirs: Path, ours: Path) -> List[str]:
    (ours / "metrics.csv").write_text("round,")
    return [f"--theirs={theirs}", f"--ours={ours}"]


def no_round_yet(theirs: Path, ours: Path) -> List[str]:
    write_rows(ours / "metrics.csv", [], RoundRecord)
    return [f"--theirs={theirs}", f"--ours={ours}"]


def no_picture(theirs: Path, ours: Path) -> List[str]:
    return [f"--theirs={theirs}", f"--ours={ours}", "--out=both.csv"]


def cannot_be_written(theirs: Path, ours: Path) -> List[str]:
    return [f"--theirs={theirs}", f"--ours={ours}", "--out=/dev/null/both.png"]


@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        (no_folder, "does not exist"),
        (file_as_folder, "is no folder"),
        (no_result_files, "_val_acc"),
        (wrong_name, "--exp_name: found 'best'"),
        (part_missing, "_test_acc is missing"),
        (no_text, "cannot be read"),
        (no_metrics, "--ours: found no metrics.csv"),
        (damaged_metrics, "cut off"),
        (no_round_yet, "holds no round yet"),
        (no_picture, "--out: found both.csv"),
        (cannot_be_written, "--out: /dev/null/both.png"),
    ],
)
def test_a_mistake_is_one_line(
    mistake: Callable[[Path, Path], List[str]],
    told: str,
    theirs: Path,
    ours: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv: List[Any] = mistake(theirs, ours)
    if not any(word.startswith("--out") for word in argv):
        argv.append(f"--out={tmp_path / 'x.png'}")
    assert compare_authors.main(argv) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("compare_authors: error: ")
    assert errors.count("\n") == 1
    assert told in errors
    assert not (tmp_path / "x.png").exists()
