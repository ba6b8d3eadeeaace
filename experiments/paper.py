"""The paper's tables and figures as suites of cells.

All cells follow the edition of the authors' program behind the paper's tables
(`--fidelity=release`). Where that edition keeps the varied quantity from counting, the
cell sets the switch that lets it count, and says so in its flagfile:

* FedProx: `--proximal_gradient=true`;
* number and interval of helpers: `--helper_policy=newest --eval_prototypes=newest`.

In all others helpers are the prototypes of all clients of the round before, as in that
edition (5 at m = 5, 20 at m = 20), although the paper says H = 5. Runs are evaluated
every 5 rounds from the start; the authors' program does so every round from 101 on.

A setting that several tables show is one cell, of the table that comes first: a `Book`
hands it out again for the same flags. So a flag is given only where it is not at the
value that the main table has.
"""

from __future__ import annotations

from typing import Callable, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple

from data import counts
from experiments import printed
from experiments.cells import Cell, Entry, Suite
from experiments.printed import CIFAR_COLUMNS, COLUMNS

Flags = Tuple[str, ...]

NUM_CLASSES = 10
IMAGES_PER_CLASS = 54  # Of a client, labelled and unlabelled together.
# The main table's values of what other tables vary.
LABELS, ACTIVE, EPOCHS, UNLABELED_AN_EPISODE = 5, 5, 10, 100
FEDMATCH_HELPERS, FEDMATCH_INTERVAL = 2, 10

METHODS: Mapping[str, Flags] = {
    "fedavg_sl": ("--method=fedavg", f"--num_label={IMAGES_PER_CLASS}"),
    "fedavg": ("--method=fedavg",),
    "fixmatch": ("--method=fixmatch", "--fixmatch_recipe=scripts"),
    "fedmatch": ("--method=fedmatch",),
    "fedrgd": ("--method=fedrgd",),
    "protofssl": ("--method=protofssl",),
    "protofssl_bn": ("--method=protofssl", "--bn_type=bn"),
}

PROX_NOTE = (
    "Sets --proximal_gradient=true: in the release edition FedProx's term has no "
    "gradient, and FedProx would train exactly as FedAvg."
)
HELPER_NOTE = (
    "Sets --helper_policy=newest and --eval_prototypes=newest: the release edition "
    "uses all kept prototypes, whatever the number of helpers."
)
FEDRGD_NOTE = (
    "The printed value is not of this setting: FedRGD's published branch for labels "
    "at the clients does not run, and its non-i.i.d. split skews the labels too. Not "
    "to be held against ours."
)
SHARED_NOTE = "No unlabelled data: the same training as i.i.d."


class Book:
    """All cells made so far; the same flags give the same cell."""

    def __init__(self) -> None:
        self._cells: Dict[FrozenSet[str], Cell] = {}

    def entry(
        self,
        place: str,
        row: str,
        column: str,
        paper: Optional[float],
        title: str,
        flags: Flags,
        note: str = "",
        beside: str = "",
        comparable: bool = True,
    ) -> Entry:
        """An entry, and its cell if no entry before it trains the same.

        Args:
            place: suite, group and name.
            row: see `Entry`.
            column: see `Entry`.
            paper: see `Entry`.
            title: see `Cell`.
            flags: see `Cell`.
            note: the cell's note.
            beside: the entry's note.
            comparable: see `Entry`.
        """
        suite, group, name = place.split("/")
        made = Cell(suite, group, name, title, flags, note)
        cell = self._cells.setdefault(frozenset(flags), made)
        address = f"{group}/{name}"
        return Entry(cell, row, column, paper, beside, address, comparable)


def make_suites() -> Mapping[str, Suite]:
    """All suites by name, the main table first."""
    book = Book()
    makers: Sequence[Callable[[Book], Suite]] = (
        _main,
        _normalisation,
        _unlabeled_per_episode,
        _local_epochs,
        _noise,
        _algorithm_2,
        _label_ratio,
        _helper_count,
        _helper_interval,
        _lambda_zero,
    )
    made = [make(book) for make in makers]
    return {suite.name: suite for suite in made}


def _flags(method: str, group: str, *more: str, active: int = ACTIVE) -> Flags:
    """All words of a cell; what all have in common stands in each of them."""
    dataset, _, split = group.partition("_")
    kind, *recipe = METHODS[method]
    return (
        kind,
        "--fidelity=release",
        f"--dataset={dataset}",
        *(("--non_iid",) if split == "noniid" else ()),
        "--num_round=300",
        f"--num_active_client={active}",
        *recipe,
        *more,
    )


def _given(name: str, value: object, default: object) -> Flags:
    """The flag, unless it is at the main table's value."""
    return () if value == default else (f"--{name}={value}",)


def _labels_only(method: str, group: str) -> str:
    """Where a method that takes no unlabelled data trains: i.i.d. is all there is."""
    return group.replace("_noniid", "_iid") if method == "fedavg" else group


def _main(book: Book) -> Suite:
    entries = []
    for row, (name, method, prox, values) in printed.MAIN.items():
        for group, value in zip(COLUMNS, values):
            if value is None:
                continue
            home = _labels_only(method, group)
            note = FEDRGD_NOTE if method == "fedrgd" else PROX_NOTE if prox else ""
            entries.append(
                book.entry(
                    f"main/{group}/{name}",
                    row,
                    COLUMNS[group],
                    value,
                    f"{row} on {COLUMNS[group]}",
                    _flags(method, home, *(_prox(method, group) if prox else ())),
                    note,
                    beside=SHARED_NOTE if home != group else note * (not prox),
                    comparable=method != "fedrgd",
                )
            )
    return Suite(
        name="main",
        title="Table 3, main results",
        caption=(
            "Test accuracy at the best validation round, 300 rounds of 5 of 100 "
            "clients; 50 labelled and 490 unlabelled images a client (STL-10 100 and "
            "980; -SL 540 and none)."
        ),
        entries=tuple(entries),
    )


def _prox(method: str, group: str) -> Flags:
    mu = printed.MU[method][group.partition("_")[0]]
    return ("--fl_framework=fedprox", f"--mu={mu}", "--proximal_gradient=true")


def _normalisation(book: Book) -> Suite:
    methods = {"FedAvg-SL": "fedavg_sl", "ProtoFSSL": "protofssl"}
    models = {"ResNet17": "res18", "ResNet18": "res18"}
    entries = []
    for method, network, norm, values in printed.NORMALISATION:
        row = f"{method}, {network}, {norm}"
        name = f"{methods[method]}_{network}_{norm}".lower()
        for (group, split), value in zip(CIFAR_COLUMNS.items(), values):
            flags = _flags(
                methods[method],
                group,
                *_given("model", models.get(network, "res9"), "res9"),
                *_given("bn_type", norm.lower(), "none"),
            )
            title = f"{row}, on {COLUMNS[group]}"
            place = f"normalisation/{group}/{name}"
            entries.append(book.entry(place, row, split, value, title, flags))
    return Suite(
        name="normalisation",
        title="Table 4, normalisation and networks",
        caption="CIFAR-10, 300 rounds of 5 clients, FedAvg.",
        entries=tuple(entries),
    )


def _unlabeled_per_episode(book: Book) -> Suite:
    entries = []
    for count, values in printed.UNLABELED_PER_EPISODE.items():
        more = _given("q_unlabel", count, UNLABELED_AN_EPISODE)
        for (group, split), value in zip(CIFAR_COLUMNS.items(), values):
            entries.append(
                book.entry(
                    f"unlabeled_per_episode/{group}/protofssl_{count}",
                    str(count),
                    split,
                    value,
                    f"ProtoFSSL with {count} unlabelled images an episode on "
                    f"{COLUMNS[group]}",
                    _flags("protofssl", group, *more),
                )
            )
    return Suite(
        name="unlabeled_per_episode",
        title="Table 7, unlabelled images per episode",
        caption="ProtoFSSL-FedAvg on CIFAR-10; rows are images an episode.",
        entries=tuple(entries),
    )


def _local_epochs(book: Book) -> Suite:
    entries = []
    for active, values in printed.LOCAL_EPOCHS.items():
        for epochs, value in values.items():
            more = _given("local_episode", epochs, EPOCHS)
            entries.append(
                book.entry(
                    f"local_epochs/m{active}/protofssl_e{epochs}",
                    f"m = {active}",
                    f"E = {epochs}",
                    value,
                    f"ProtoFSSL on CIFAR-10 i.i.d., {active} active clients, E = "
                    f"{epochs}",
                    _flags("protofssl", "cifar10_iid", *more, active=active),
                )
            )
    return Suite(
        name="local_epochs",
        title="Table 8, local epochs by active clients",
        caption="ProtoFSSL-FedAvg on CIFAR-10 i.i.d.",
        entries=tuple(entries),
    )


def _noise(book: Book) -> Suite:
    entries = []
    for stddev, values in printed.NOISE.items():
        more = () if stddev == "0" else ("--use_noise=true", f"--stddev={stddev}")
        for (group, column), value in zip(COLUMNS.items(), values):
            entries.append(
                book.entry(
                    f"noise/{group}/protofssl_bn_stddev_{stddev}",
                    stddev,
                    column,
                    value,
                    "ProtoFSSL(BN)-FedAvg, prototypes with noise of standard deviation "
                    f"{stddev}, on {column}",
                    _flags("protofssl_bn", group, *more),
                )
            )
    return Suite(
        name="noise",
        title="Table 9, noise on prototypes",
        caption="ProtoFSSL(BN)-FedAvg; rows are the noise's standard deviation.",
        entries=tuple(entries),
    )


def _algorithm_2(book: Book) -> Suite:
    group = "cifar10_iid"
    unsaid = "The paper does not say which split it is; i.i.d. is assumed."
    told = (
        "The text puts it 22.1 points above Algorithm 2, which is 56.1; Table 3 prints "
        "67.8 for the same setting."
    )
    second = book.entry(
        f"algorithm_2/{group}/protofssl_global",
        "Algorithm 2",
        COLUMNS[group],
        printed.ALGORITHM_2,
        f"ProtoFSSL with global prototypes (Algorithm 2) on {COLUMNS[group]}",
        _flags("protofssl", group, "--prototype_source=global"),
        unsaid,
        beside=unsaid,
    )
    first = book.entry(
        f"algorithm_2/{group}/protofssl_support",
        "Algorithm 1",
        COLUMNS[group],
        None,
        f"ProtoFSSL on {COLUMNS[group]}",
        _flags("protofssl", group),
        beside=told,
    )
    return Suite(
        name="algorithm_2",
        title="Appendix B.1, Algorithm 2",
        caption=(
            "Own prototypes from the support set (Algorithm 1) or the mean of the "
            "helpers' (Algorithm 2)."
        ),
        entries=(first, second),
    )


def _label_ratio(book: Book) -> Suite:
    entries = []
    for label, (method, numbers) in printed.LABEL_RATIO.items():
        for group, split in CIFAR_COLUMNS.items():
            row = f"{label}, {split}"
            for labels in numbers:
                entries.append(_label_ratio_entry(book, row, method, group, labels))
    return Suite(
        name="label_ratio",
        title="Figure 3, labelled images per class",
        caption=(
            "CIFAR-10, 540 images a client of which so many per class are labelled. "
            "At 54 nothing is unlabelled, and FedAvg alone can train. The values are "
            "plotted, not printed."
        ),
        entries=tuple(entries),
        kind="figure",
        x_label="labelled images per class and client",
    )


def _label_ratio_entry(
    book: Book, row: str, method: str, group: str, labels: int
) -> Entry:
    title = f"{row.partition(',')[0]} with {labels} labelled images per class on "
    place = f"label_ratio/{group}/{method}_{labels}"
    if labels == IMAGES_PER_CLASS:
        flags = _flags("fedavg_sl", group)
        beside = "FedAvg-SL of Table 3: non-i.i.d., its labels are skewed too."
        return book.entry(
            place, row, str(labels), None, title + COLUMNS[group], flags, "", beside
        )
    home = _labels_only(method, group)
    more, note = _label_flags(method, group, labels)
    return book.entry(
        place,
        row,
        str(labels),
        None,
        title + COLUMNS[home],
        _flags(method, home, *more),
        note,
        beside=SHARED_NOTE if home != group else note,
    )


def _label_flags(method: str, group: str, labels: int) -> Tuple[Flags, str]:
    """The flags of so many labels, and a note where an episode has to be smaller."""
    if labels == LABELS:
        return (), ""
    unlabeled = NUM_CLASSES * (IMAGES_PER_CLASS - labels)
    words: List[str] = [f"--num_label={labels}"]
    if method != "fedavg":
        words.append(f"--num_unlabel={unlabeled}")
    dealt = _dealt(group, unlabeled)
    if method != "protofssl" or dealt >= UNLABELED_AN_EPISODE:
        return tuple(words), ""
    words.append(f"--q_unlabel={dealt}")
    note = f"Sets --q_unlabel={dealt}: a client has no more unlabelled images."
    return tuple(words), note


def _dealt(group: str, unlabeled: int) -> int:
    """Unlabelled images that a client really gets: uneven shares are rounded down."""
    if not group.endswith("_noniid"):
        return unlabeled
    table = counts.skewed_counts(1, unlabeled, NUM_CLASSES, False, "release")
    return int(table.sum())


def _helper_count(book: Book) -> Suite:
    entries = [
        _protofssl_helpers(book, "helper_count", active, count, interval=1)
        for active, numbers in printed.HELPER_COUNTS.items()
        for count in numbers
    ]
    entries.extend(
        _fedmatch_helpers(book, "helper_count", count, FEDMATCH_INTERVAL)
        for count in printed.HELPER_COUNTS[ACTIVE]
    )
    return Suite(
        name="helper_count",
        title="Figures 4a and 5a, number of helpers",
        caption=(
            "CIFAR-10 i.i.d. ProtoFSSL trains and is evaluated with the newest H "
            "prototype sets, fresh every round; FedMatch at R_H = 10. The values are "
            "plotted, not printed."
        ),
        entries=tuple(entries),
        kind="figure",
        x_label="helpers, H",
    )


def _helper_interval(book: Book) -> Suite:
    entries = [
        _protofssl_helpers(book, "helper_interval", active, active, interval)
        for active, intervals in printed.HELPER_INTERVALS.items()
        for interval in intervals
    ]
    entries.extend(
        _fedmatch_helpers(book, "helper_interval", FEDMATCH_HELPERS, interval)
        for interval in printed.HELPER_INTERVALS[ACTIVE]
    )
    return Suite(
        name="helper_interval",
        title="Figures 4b and 5b, interval between new helpers",
        caption=(
            "CIFAR-10 i.i.d. ProtoFSSL with H = m, FedMatch with H = 2. The values are "
            "plotted, not printed."
        ),
        entries=tuple(entries),
        kind="figure",
        x_label="rounds that helpers stay, R_H",
    )


def _helper_place(suite: str, count: int, interval: int) -> Tuple[str, str]:
    """The end of a cell's name, and its place on the x axis."""
    if suite == "helper_count":
        return f"h{count}", str(count)
    return f"r{interval}", str(interval)


def _protofssl_helpers(
    book: Book, suite: str, active: int, count: int, interval: int
) -> Entry:
    name, column = _helper_place(suite, count, interval)
    more = (
        "--helper_policy=newest",
        "--eval_prototypes=newest",
        f"--helper_cnt={count}",
        *_given("helper_interval", interval, 1),
    )
    return book.entry(
        f"{suite}/m{active}/protofssl_{name}",
        f"ProtoFSSL, m = {active}",
        column,
        None,
        f"ProtoFSSL on CIFAR-10 i.i.d., {active} active clients, H = {count}, R_H = "
        f"{interval}",
        _flags("protofssl", "cifar10_iid", *more, active=active),
        HELPER_NOTE,
    )


def _fedmatch_helpers(book: Book, suite: str, count: int, interval: int) -> Entry:
    name, column = _helper_place(suite, count, interval)
    more = (
        *_given("helper_cnt", count, FEDMATCH_HELPERS),
        *_given("helper_interval", interval, FEDMATCH_INTERVAL),
    )
    return book.entry(
        f"{suite}/m{ACTIVE}/fedmatch_{name}",
        f"FedMatch, m = {ACTIVE}",
        column,
        None,
        f"FedMatch on CIFAR-10 i.i.d., H = {count}, R_H = {interval}",
        _flags("fedmatch", "cifar10_iid", *more),
    )


def _lambda_zero(book: Book) -> Suite:
    """Without batch norm, images that have no weight in the loss do nothing at all."""
    nothing = (
        "Unlabelled data has no effect without batch norm: the same training as i.i.d."
    )
    entries = []
    for method, label in (
        ("protofssl", "ProtoFSSL"),
        ("protofssl_bn", "ProtoFSSL(BN)"),
    ):
        for weight in ("0.3", "0"):
            row = f"{label}, lambda_U = {weight}"
            for group, column in COLUMNS.items():
                idle = (method, weight) == ("protofssl", "0")
                home = group.replace("_noniid", "_iid") if idle else group
                more = _given("unlabeled_weight", weight, "0.3")
                entries.append(
                    book.entry(
                        f"lambda_zero/{group}/{method}_lambda_{weight}",
                        row,
                        column,
                        None,
                        f"{label}-FedAvg with lambda_U = {weight} on {COLUMNS[home]}",
                        _flags(method, home, *more),
                        beside=nothing if home != group else "",
                    )
                )
    return Suite(
        name="lambda_zero",
        title="ProtoFSSL without its unlabelled loss (not in the paper)",
        caption=(
            "What unlabelled data brings: lambda_U = 0 leaves the unlabelled loss "
            "out. The images still pass through the network and shape batch "
            "statistics."
        ),
        entries=tuple(entries),
    )
