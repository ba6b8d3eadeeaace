"""Tests of the command line's grammar and its help."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from flags.config import declarations
from flags.errors import UsageError
from flags.flagfile import MAX_BYTES, MAX_FILES
from flags.parse import HelpWanted, given_flags, help_text, parse

BY_NAME = {declared.name: declared for declared in declarations()}


def _other_value(declared: Any) -> Any:
    """A value of the flag that is not its default."""
    default, choices = declared.default, declared.metadata["choices"]
    if isinstance(default, bool):
        return not default
    if choices:
        return next(word for word in choices if word != default)
    if isinstance(default, int):
        return default + 1
    return default + 0.25 if isinstance(default, float) else f"other{default}"


@pytest.mark.parametrize("declared", declarations(), ids=lambda d: d.name)
def test_every_flag_takes_its_value_both_ways(declared: Any) -> None:
    name, value = declared.name, _other_value(declared)
    assert given_flags([f"--{name}={value}"]) == {name: value}
    assert given_flags([f"--{name}", str(value)]) == {name: value}


@pytest.mark.parametrize(
    "name", [d.name for d in declarations() if isinstance(d.default, bool)]
)
def test_every_boolean_reads_the_word_that_follows(name: str) -> None:
    assert given_flags([f"--{name}"]) == {name: True}
    assert given_flags([f"--no{name}"]) == {name: False}
    for word in ("True", "true", "1", "yes"):
        assert given_flags([f"--{name}", word, "--threads=3"])[name] is True
    for word in ("False", "false", "0", "no"):
        assert given_flags([f"--{name}", word, "--threads=3"])[name] is False
        assert given_flags([f"--{name}={word}"]) == {name: False}


def test_boolean_does_not_swallow_the_next_flag() -> None:
    flags = given_flags(["--use_noise", "--stddev", "0.5", "--non_iid"])
    assert flags == {"use_noise": True, "stddev": 0.5, "non_iid": True}


def test_only_flags_given_are_returned() -> None:
    assert given_flags([]) == {}
    assert given_flags(["--seed=1000"]) == {"seed": 1000}


def test_last_of_a_repeated_flag_wins() -> None:
    assert given_flags(["--seed=1", "--seed", "2"]) == {"seed": 2}
    assert given_flags(["--use_noise", "--nouse_noise"]) == {"use_noise": False}
    assert given_flags(["--use_noise", "False", "--use_noise"]) == {"use_noise": True}


@pytest.mark.parametrize("declared", declarations(), ids=lambda d: d.name)
def test_unambiguous_starts_of_the_authors_flags_are_taken(declared: Any) -> None:
    """As argparse does: the start of one name only, counting --help as a name."""
    theirs = [*(d.name for d in declarations() if d.metadata["theirs"]), "help"]
    value = _other_value(declared)
    for end in range(1, len(declared.name)):
        start = declared.name[:end]
        matches = [name for name in theirs if name.startswith(start)]
        if start in BY_NAME or start == "h":
            continue
        if matches == [declared.name]:
            assert given_flags([f"--{start}={value}"]) == {declared.name: value}
        elif len(matches) != 1 and start != "help":
            with pytest.raises(UsageError, match=f"^--{start}: "):
                given_flags([f"--{start}={value}"])


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--sede=3"], "--sede: no such flag, the nearest is --seed; --help lists"),
        (["--zzz", "3"], "--zzz: no such flag; --help lists them"),
        (["--num=3"], "--num: found the start of --num_round, --num_client, "),
        (["--noseed"], "--noseed: no such flag"),
        (["--undefok=foo"], "--undefok: no such flag"),
        (["--temp=2"], "--temp: no such flag; --help lists them"),
        (["stray"], "found 'stray', which is no flag"),
        (["--seed=3", "stray"], "found 'stray', which is no flag"),
        (["--use_noise", "maybe"], "found 'maybe', which is no flag"),
        (["--"], "found '--', which is no flag"),
        ([""], "found '', which is no flag"),
        (["--use_noise=maybe"], "--use_noise: found 'maybe', must be true or false"),
        (["--nouse_noise=true"], "--nouse_noise: found '=true', must have no value"),
        (["--seed"], "--seed: found no value; give --seed=VALUE"),
        (["--exp_name", "--seed", "3"], "--exp_name: found no value"),
        (["--seed="], "--seed: found '', must be a whole number"),
        (["--seed", "1.5"], "--seed: found '1.5', must be a whole number"),
        (["--opt_lr", "fast"], "--opt_lr: found 'fast', must be a number"),
        (["--opt_lr=1e-3x"], "--opt_lr: found '1e-3x', must be a number"),
        (["--seed=3\n4"], "--seed: found '3\\n4', must be a whole number"),
    ],
)
def test_mistake_is_one_line_that_names_it(argv: list[str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        given_flags(argv)
    assert str(caught.value).startswith(message)
    assert len(str(caught.value).splitlines()) == 1


def test_negative_number_after_a_blank_is_a_value() -> None:
    assert given_flags(["--unlabel_round", "-1"]) == {"unlabel_round": -1}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_flag_file_takes_lines_as_words(folder: Path) -> None:
    (folder / "a.flags").write_text(
        "# a comment\n\n// another\n--seed 7\n--use_noise False\n  --num_round=9 \r\n"
        "--bn\n--exp_name two words\n--out_dir=more words\n--num_l\t4\n-mu=0.5\n"
    )
    assert given_flags(["--flagfile=a.flags"]) == {
        "seed": 7,
        "use_noise": False,
        "num_round": 9,
        "bn": True,
        "exp_name": "two words",
        "out_dir": "more words",
        "num_label": 4,
        "mu": 0.5,
    }
    assert given_flags(["--flagfile", "a.flags"])["seed"] == 7


def test_flag_file_stands_where_it_is_named(folder: Path) -> None:
    (folder / "a.flags").write_text("--seed=7\n")
    assert given_flags(["--seed=1", "--flagfile=a.flags"]) == {"seed": 7}
    assert given_flags(["--flagfile=a.flags", "--seed=1"]) == {"seed": 1}


@pytest.mark.parametrize("link", ["--flagfile=inner.flags", "--flagfile inner.flags"])
def test_flag_files_nest(folder: Path, link: str) -> None:
    (folder / "inner.flags").write_text("--seed 7\n--use_noise False\n")
    (folder / "outer.flags").write_text(f"--mu=0.5\n{link}\n--use_noise\n")
    flags = given_flags(["--flagfile=outer.flags", "--flagfile=inner.flags"])
    assert flags == {"mu": 0.5, "seed": 7, "use_noise": False}


def _flag_file_error(name: str) -> str:
    with pytest.raises(UsageError) as caught:
        given_flags([f"--flagfile={name}"])
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (bytes(range(256)), "found no text"),
        (b"--exp_name=a\0b\n", "found no text"),
        (b"# x\n" * (MAX_BYTES // 4 + 1), "found no text"),
        (b"--seed=3\nseed 8\n", "line 2 is 'seed 8', must be a flag"),
        (b"--flagfile=bad.flags\n", "the file leads back to itself"),
        (b"--flagfile other.flags\n", "the file leads back to itself"),
        (b"--flagfile=absent.flags\n", "cannot be read (No such file"),
    ],
    ids=["binary", "nul", "huge", "stray", "itself", "circle", "nested_missing"],
)
def test_hostile_flag_file_is_one_line(
    folder: Path, content: bytes, message: str
) -> None:
    (folder / "bad.flags").write_bytes(content)
    (folder / "other.flags").write_text("--flagfile=./bad.flags\n")
    text = _flag_file_error("bad.flags")
    assert text.startswith("--flagfile=")
    assert message in text


def test_flag_file_that_is_none_is_one_line(folder: Path) -> None:
    assert "cannot be read (No such file" in _flag_file_error("absent.flags")
    assert "cannot be read (Is a directory)" in _flag_file_error(str(folder))
    assert _flag_file_error("").startswith("--flagfile: found no value")
    with pytest.raises(UsageError, match="^--flagfile: found no value"):
        given_flags(["--flagfile"])


def test_endless_device_is_refused_at_once() -> None:
    assert "found no text" in _flag_file_error("/dev/zero")


def test_flag_files_that_multiply_are_refused_at_once(folder: Path) -> None:
    """Forty files, each naming the next twice, would be 2^40 words."""
    for i in range(40):
        (folder / str(i)).write_text(f"--flagfile={i + 1}\n" * 2)
    (folder / "40").write_text("--seed=3\n")
    start = time.process_time()
    assert f"more than {MAX_FILES} flag files" in _flag_file_error("0")
    assert time.process_time() - start < 1


@pytest.mark.parametrize(
    "argv",
    [
        ["--help"],
        ["-h"],
        ["--helpfull"],
        ["--help=true"],
        ["--seed=1", "--help"],
        ["--zzz", "--help"],
        ["--seed", "--help"],
        ["--flagfile=absent.flags", "--help"],
    ],
)
def test_help_is_heard_anywhere(argv: list[str]) -> None:
    with pytest.raises(HelpWanted):
        parse(argv)


def test_help_is_heard_in_a_flag_file(folder: Path) -> None:
    (folder / "a.flags").write_text("--help\n")
    with pytest.raises(HelpWanted):
        parse(["--flagfile=a.flags"])


def test_help_as_a_value_is_a_value() -> None:
    assert given_flags(["--exp_name=--help"]) == {"exp_name": "--help"}


def test_help_lists_every_flag_once_under_its_heading() -> None:
    heading, found = "", []
    headings = {d.metadata["group"] for d in declarations()}
    for line in help_text().splitlines():
        if line in headings:
            heading = line
        flag = re.match(r"  --(\w+) \(", line)
        if flag:
            found.append((flag.group(1), heading))
    assert found == [(d.name, d.metadata["group"]) for d in declarations()]


def test_help_shows_defaults_columns_and_choices() -> None:
    text = help_text()
    assert "--seed (default 1000)" in text
    assert "--split_seed (release 1001, head 101, paper 1001)" in text
    assert "--l2_in_loss (release false, head false, paper true)" in text
    assert "One of: CE, MSE." in text
    assert "--flagfile" in text


def test_help_fits_the_page() -> None:
    assert max(map(len, help_text().splitlines())) <= 88
