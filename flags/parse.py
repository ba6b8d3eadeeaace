"""The command line itself: absl flags from the declarations, and their help."""

from __future__ import annotations

import textwrap
from typing import Any, Dict, List, Mapping, Sequence

from absl import flags as absl_flags

from flags.config import declarations
from flags.errors import UsageError
from flags.resolve import Resolved, resolve

TRUE_WORDS = ("true", "t", "1", "yes", "y")
FALSE_WORDS = ("false", "f", "0", "no", "n")
INTRODUCTION = """\
Trains ProtoFSSL (Kim et al. 2022) and the methods it is compared with, on TensorFlow
Federated. Without flags: handwritten digits, some minutes on two cores.

  python main.py --dataset=cifar10 --bn=true     the paper's best setting
  python main.py --exp_name=first --resume       continue a run
  python main.py --flagfile=my.flags --dry_run   show what would run

`--flag=value` and `--flag value` both work. --flagfile=FILE reads flags from a file.
"""


class HelpWanted(Exception):
    """The user asked for help; the text is the help."""


def parse(argv: Sequence[str]) -> Resolved:
    """Parses and resolves a command line.

    Args:
        argv: the arguments without the program's name.

    Raises:
        UsageError: for anything that cannot be understood or cannot run.
        HelpWanted: for --help.
    """
    return resolve(given_flags(argv))


def given_flags(argv: Sequence[str]) -> Mapping[str, Any]:
    """The flags on the command line, by name, with typed values."""
    values = _flag_values()
    try:
        words = values.read_flags_from_files(list(argv), force_gnu=True)
        if any(word in ("--help", "-h", "--helpfull", "-help") for word in words):
            raise HelpWanted(help_text())
        rest = values(["main.py", *_normalize(words)])[1:]
    except absl_flags.Error as error:
        raise UsageError(_explain(error)) from None
    if rest:
        raise UsageError(f"found '{rest[0]}', which is no flag; flags start with --")
    return {name: values[name].value for name in values if values[name].present}


def help_text() -> str:
    """All flags under their headings."""
    lines = [INTRODUCTION]
    groups: Dict[str, List[Any]] = {}
    for declared in declarations():
        groups.setdefault(declared.metadata["group"], []).append(declared)
    for group, members in groups.items():
        lines.append(f"\n{group}\n")
        lines.extend(_describe(declared) for declared in members)
    return "\n".join(lines)


def _describe(declared: Any) -> str:
    """One flag: its name and default, and its help indented below."""
    choices, columns = declared.metadata["choices"], declared.metadata["columns"]
    if columns:
        default = ", ".join(f"{k} {_show(v)}" for k, v in columns.items())
    else:
        default = f"default {_show(declared.default)}"
    head = f"  --{declared.name} ({default})"
    text = declared.metadata["help"]
    if choices:
        text += f" One of: {', '.join(choices)}."
    body = textwrap.fill(
        text, width=80, initial_indent=" " * 6, subsequent_indent=" " * 6
    )
    return f"{head}\n{body}"


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value == "" else str(value)


def _flag_values() -> absl_flags.FlagValues:
    """One absl flag a declaration, apart from absl's global flags."""
    values = absl_flags.FlagValues()
    define = {
        bool: absl_flags.DEFINE_boolean,
        int: absl_flags.DEFINE_integer,
        float: absl_flags.DEFINE_float,
        str: absl_flags.DEFINE_string,
    }
    for declared in declarations():
        define[type(declared.default)](
            declared.name,
            declared.default,
            declared.metadata["help"],
            flag_values=values,
        )
    return values


def _normalize(words: Sequence[str]) -> List[str]:
    """Writes every flag as absl reads it: `--name=value` or `--name`.

    absl takes `--use_noise False` as true and a stray word. A line of a flag file may
    hold `--name value`. The authors' argparse takes any unambiguous start of a name.
    """
    queue = [part for word in words for part in _split_line(word)]
    result: List[str] = []
    while queue:
        word = queue.pop(0)
        if not word.startswith("--") or word == "--":
            result.append(word)
            continue
        name, equals, value = word[2:].partition("=")
        name = _full_name(name)
        if not equals and queue and _takes(name, queue[0]):
            equals, value = "=", queue.pop(0)
        result.append(f"--{name}{equals}{_boolean_word(name, value)}")
    return result


def _split_line(word: str) -> List[str]:
    head = word.split("=", 1)[0]
    if word.startswith("--") and len(head.split()) > 1:
        return word.split(None, 1)
    return [word]


def _full_name(name: str) -> str:
    names = [d.name for d in declarations()]
    if name in names or (name.startswith("no") and name[2:] in names):
        return name
    starts = [
        d.name
        for d in declarations()
        if d.metadata["theirs"] and name and d.name.startswith(name)
    ]
    return starts[0] if len(starts) == 1 else name


def _takes(name: str, word: str) -> bool:
    """Whether the word is the value of the flag before it."""
    if _is_boolean(name):
        return word.lower() in TRUE_WORDS + FALSE_WORDS
    return any(d.name == name for d in declarations())


def _boolean_word(name: str, value: str) -> str:
    """A boolean flag's value in one of the two words that absl knows."""
    if not _is_boolean(name) or value.lower() not in TRUE_WORDS + FALSE_WORDS:
        return value
    return "true" if value.lower() in TRUE_WORDS else "false"


def _is_boolean(name: str) -> bool:
    return any(d.name == name and isinstance(d.default, bool) for d in declarations())


def _explain(error: absl_flags.Error) -> str:
    """absl's message as one line that starts with the flag."""
    text = " ".join(str(error).split())
    if isinstance(error, absl_flags.UnrecognizedFlagError):
        hint = f"; nearest: --{error.suggestions[0]}" if getattr(error, "suggestions", None) else ""
        return f"--{error.flagname}: no such flag{hint}; --help lists them"
    return text.replace("flag --", "--", 1)
