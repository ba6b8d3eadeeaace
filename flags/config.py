"""The configuration of a run: one frozen record, each field a flag.

A field is declared once, with its default, help and range; `flags.parse` makes the
command line from these declarations and `flags.resolve` the resolved record.
"""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence, Tuple

import attr

from data.sources import DATASETS
from flags.presets import METHODS
from models.specs import MODELS, NORMS

RUN = "The run"
DATA = "Data and how it is dealt to clients"
NETWORK = "Network"
FEDERATION = "Federation"
TRAINING = "Local training"
UNLABELED = "Unlabelled data"
PROTOTYPES = "Prototypes and helpers"
PRIVACY = "Privacy of prototypes"
FIDELITY = "Fidelity switches (--fidelity sets them all; each can be set alone)"
BASELINES = "Other methods"

FIDELITIES = ("release", "head", "paper")


def _flag(
    default: Any,
    text: str,
    group: str,
    *,
    choices: Optional[Sequence[str]] = None,
    at_least: Optional[float] = None,
    above: Optional[float] = None,
    below: Optional[float] = None,
    head: Any = None,
    paper: Any = None,
    theirs: bool = False,
    describes_run: bool = True,
) -> Any:
    """Declares a flag.

    Args:
        default: its value when not given (for a fidelity switch: under release).
        text: its help.
        group: its heading in the help.
        choices: the words it takes, if it takes only some.
        at_least: its smallest value, if it has one.
        above: a value it must exceed, if there is one.
        below: a value it must stay under, if there is one.
        head: for a fidelity switch, its value under head.
        paper: for a fidelity switch, its value under paper.
        theirs: whether the authors' program has it too.
        describes_run: whether two runs that differ in it are different runs.
    """
    columns = dict(zip(FIDELITIES, (default, head, paper)))
    metadata = {
        "help": text,
        "group": group,
        "choices": tuple(choices) if choices else None,
        "at_least": at_least,
        "above": above,
        "below": below,
        "theirs": theirs,
        "describes_run": describes_run,
        "columns": None if head is None else columns,
    }
    return attr.field(default=default, metadata=metadata)


@attr.frozen
class ExperimentConfig:
    """Every value a run depends on; the fields are documented by their help."""

    exp_name: str = _flag(
        "protofssl", "Name of the run: its folder under --out_dir.", RUN, theirs=True
    )
    method: str = _flag("protofssl", "What to train.", RUN, choices=tuple(METHODS))
    fidelity: str = _flag(
        "release",
        "Whom to follow where the paper and the authors' program differ: the program "
        "behind the paper's tables (release), the one published today (head), or the "
        "paper's equations (paper).",
        RUN,
        choices=FIDELITIES,
    )
    seed: int = _flag(
        1000,
        "Seed of the initial weights, of the choice of clients and of the episodes. It "
        "never touches the split of the data (--split_seed).",
        RUN,
        at_least=0,
        theirs=True,
    )
    num_round: int = _flag(
        300, "Communication rounds, R in the paper.", RUN, at_least=1, theirs=True
    )
    eval_every: int = _flag(
        5,
        "Evaluate on validation and test every so many rounds; the last round always "
        "is. (The authors' program: 1.)",
        RUN,
        at_least=1,
    )
    eval_from: int = _flag(
        1,
        "First round that may be evaluated. (The authors' program: 101.)",
        RUN,
        at_least=1,
    )
    out_dir: str = _flag("runs", "Folder of all runs.", RUN, describes_run=False)
    resume: bool = _flag(
        False,
        "Continue the run of that name from its last complete round.",
        RUN,
        describes_run=False,
    )
    overwrite: bool = _flag(
        False, "Replace an existing run of that name.", RUN, describes_run=False
    )
    keep_checkpoints: int = _flag(
        2,
        "How many of the newest checkpoints to keep, beside the best.",
        RUN,
        at_least=1,
        describes_run=False,
    )
    threads: int = _flag(
        0,
        "Threads for an operation; 0 leaves the choice to TensorFlow.",
        RUN,
        at_least=0,
        describes_run=False,
    )
    concurrent_clients: int = _flag(
        0,
        "How many clients a worker here trains at the same time, each with memory of "
        "its own; 0 leaves the choice to the worker.",
        RUN,
        at_least=0,
        describes_run=False,
    )
    workers: str = _flag(
        "1",
        "Workers that share the clients of a round: a number starts so many here, "
        "HOST:PORT,HOST:PORT,... takes those that run elsewhere (python -m fl.worker "
        "--port=PORT).",
        RUN,
        describes_run=False,
    )
    worker_ca: str = _flag(
        "",
        "TLS to workers elsewhere: PEM file of the authorities that vouch for them.",
        RUN,
        describes_run=False,
    )
    worker_cert: str = _flag(
        "",
        "PEM file of this side's own certificate, for workers that ask for one.",
        RUN,
        describes_run=False,
    )
    worker_key: str = _flag(
        "", "PEM file of its private key.", RUN, describes_run=False
    )
    print_log: bool = _flag(
        False,
        "Log a line for each client and round.",
        RUN,
        theirs=True,
        describes_run=False,
    )
    dry_run: bool = _flag(
        False,
        "Print the resolved configuration as JSON and stop; touches nothing.",
        RUN,
        describes_run=False,
    )

    dataset: str = _flag(
        "digits", "Data set.", DATA, choices=tuple(DATASETS), theirs=True
    )
    data_dir: str = _flag(
        "",
        "Folder with <dataset>.npz files (uint8 x_train, y_train, x_test, y_test; for "
        "stl10 also x_unlabeled), looked at before the cache and the download.",
        DATA,
    )
    num_client: int = _flag(
        100,
        "Clients, N in the paper.",
        DATA,
        at_least=1,
        below=10**5,
        theirs=True,
    )
    num_label: int = _flag(
        5, "Labelled images per class at a client.", DATA, at_least=1, theirs=True
    )
    num_unlabel: int = _flag(
        490, "Unlabelled images at a client.", DATA, at_least=0, theirs=True
    )
    non_iid: bool = _flag(
        False, "Deal unlabelled images unevenly over classes.", DATA, theirs=True
    )
    extreme_non_iid: bool = _flag(
        False,
        "With --non_iid: deal labelled images unevenly too; a client lacks two "
        "classes.",
        DATA,
        theirs=True,
    )
    dirichlet_alpha: float = _flag(
        0.0,
        "Deal labelled and unlabelled images by class shares drawn from a Dirichlet "
        "distribution with this concentration; 0 turns it off. Excludes --non_iid.",
        DATA,
        at_least=0,
    )

    model: str = _flag(
        "res9",
        "Network. ProtoFSSL takes it without its last dense layer (res9 is then the "
        "paper's ResNet8, res18 its ResNet17).",
        NETWORK,
        choices=tuple(MODELS),
        theirs=True,
    )
    bn_type: str = _flag(
        "none",
        "Normalisation: none, batch (bn), group (gn) or static batch (sbn).",
        NETWORK,
        choices=NORMS,
        theirs=True,
    )
    bn: bool = _flag(False, "Short for --bn_type=bn.", NETWORK, describes_run=False)
    conv_bias: bool = _flag(
        True,
        "Biases in convolutions and in the dense layer.",
        NETWORK,
    )
    init: str = _flag(
        "default",
        "Initial weights: `default`, drawn from --seed, or `numpy:SEED`, kernels from "
        "NumPy's RandomState(SEED), the same under any TensorFlow.",
        NETWORK,
    )

    num_active_client: int = _flag(
        5,
        "Clients that train in a round, m in the paper.",
        FEDERATION,
        at_least=1,
        theirs=True,
    )
    client_dropout: float = _flag(
        0.0,
        "Share of the active clients that drop out in mid-round, drawn from --seed: "
        "nothing of them comes back. At least one stays.",
        FEDERATION,
        at_least=0,
        below=1,
    )
    fl_framework: str = _flag(
        "fedavg",
        "FedAvg, or FedProx with a proximal term of weight --mu.",
        FEDERATION,
        choices=("fedavg", "fedprox"),
        theirs=True,
    )
    mu: float = _flag(
        1e-3, "Weight of FedProx's proximal term.", FEDERATION, at_least=0, theirs=True
    )

    local_episode: int = _flag(
        10,
        "Episodes (or epochs) a client trains in a round, E in the paper.",
        TRAINING,
        at_least=1,
        theirs=True,
    )
    s_label: int = _flag(
        1, "Support images per class and episode.", TRAINING, at_least=1, theirs=True
    )
    q_label: int = _flag(
        2, "Query images per class and episode.", TRAINING, at_least=1, theirs=True
    )
    optimizer: str = _flag(
        "rmsprop",
        "Optimizer, as TensorFlow 2.6 has it.",
        TRAINING,
        choices=("rmsprop", "sgd", "nesterov", "adam"),
        theirs=True,
    )
    opt_lr: float = _flag(1e-3, "Learning rate.", TRAINING, above=0, theirs=True)
    opt_momentum: float = _flag(
        0.0,
        "Momentum of rmsprop, sgd and nesterov; adam ignores it.",
        TRAINING,
        at_least=0,
        below=1,
        theirs=True,
    )
    l2_factor: float = _flag(
        1e-4,
        "Weight of the L2 term on convolution kernels; counts with --l2_in_loss.",
        TRAINING,
        at_least=0,
        theirs=True,
    )
    weight_decay: float = _flag(
        0.0,
        "Share of every weight that is added to its gradient; 0 for none.",
        TRAINING,
        at_least=0,
    )

    q_unlabel: int = _flag(
        100, "Unlabelled images per episode.", UNLABELED, at_least=1, theirs=True
    )
    unlabeled_weight: float = _flag(
        0.3,
        "Weight of the unlabelled loss, lambda in the paper.",
        UNLABELED,
        at_least=0,
    )
    temperature: float = _flag(
        0.5,
        "Temperature T that sharpens pseudo-labels; p^(1/T) would underflow below 0.1.",
        UNLABELED,
        at_least=0.1,
    )
    unlabel_loss_type: str = _flag(
        "CE",
        "Cross entropy or mean squared error between pseudo-label and prediction.",
        UNLABELED,
        choices=("CE", "MSE"),
        theirs=True,
    )
    unlabel_round: int = _flag(
        0,
        "Unlabelled data counts after this round (counted from 0; round 0 has no "
        "helpers).",
        UNLABELED,
        at_least=-1,
        theirs=True,
    )
    warmup_episode: int = _flag(
        0,
        "Episodes at the start of a client's round without unlabelled data.",
        UNLABELED,
        at_least=0,
        theirs=True,
    )

    prototype_source: str = _flag(
        "support",
        "Own prototypes from the support set (Algorithm 1) or the mean of the helpers' "
        "(global: Algorithm 2).",
        PROTOTYPES,
        choices=("support", "global"),
    )
    helper_cnt: int = _flag(
        5, "Helper clients, H in the paper.", PROTOTYPES, at_least=1, theirs=True
    )
    helper_interval: int = _flag(
        1,
        "Rounds that helpers stay before newer ones replace them, R_H in the paper.",
        PROTOTYPES,
        at_least=1,
    )
    keep_proto_rounds: int = _flag(
        1,
        "Rounds for which the server keeps prototypes.",
        PROTOTYPES,
        at_least=1,
        theirs=True,
    )
    refine_at_begin: bool = _flag(
        False,
        "Make prototypes with the new global weights before training instead of after "
        "it; as in the authors' program only the last active client's set is kept.",
        PROTOTYPES,
        theirs=True,
    )
    comp_dist: bool = _flag(
        False,
        "Every 10 rounds, log the mean Euclidean distance between the clients' "
        "prototypes of each class.",
        PROTOTYPES,
        theirs=True,
        describes_run=False,
    )

    use_noise: bool = _flag(
        False,
        "Add Gaussian noise of --stddev to the prototypes a client shares. Noise alone "
        "is no differential privacy: nothing bounds or accounts for what leaks.",
        PRIVACY,
        theirs=True,
    )
    stddev: float = _flag(
        0.0, "Standard deviation of that noise.", PRIVACY, at_least=0, theirs=True
    )
    min_share_samples: int = _flag(
        0,
        "A client withholds the prototype of a class for which it has fewer labelled "
        "images than this.",
        PRIVACY,
        at_least=0,
    )

    split_seed: int = _flag(
        1001,
        "Seed of the split of the data.",
        FIDELITY,
        at_least=0,
        head=101,
        paper=1001,
    )
    unlabeled_overlap: bool = _flag(
        False,
        "An image labelled at one client may be unlabelled at another.",
        FIDELITY,
        head=True,
        paper=False,
    )
    deal_order: str = _flag(
        "client",
        "Order in which clients draw their images.",
        FIDELITY,
        choices=("client", "shuffled"),
        head="shuffled",
        paper="client",
    )
    class_counts: str = _flag(
        "release",
        "Images of a client's main class when it has 490 unlabelled, non-i.i.d.: 244 "
        "(release) or 243 (head).",
        FIDELITY,
        choices=("release", "head"),
        head="head",
        paper="release",
    )
    distance: str = _flag(
        "mean_squared",
        "Distance to a prototype: the norm of the difference (euclidean) or the mean "
        "of its squares.",
        FIDELITY,
        choices=("mean_squared", "euclidean"),
        head="mean_squared",
        paper="euclidean",
    )
    pseudo_label_gradient: bool = _flag(
        True,
        "A gradient flows through the pseudo-label.",
        FIDELITY,
        head=True,
        paper=False,
    )
    l2_in_loss: bool = _flag(
        False, "The L2 term is part of the loss.", FIDELITY, head=False, paper=True
    )
    proximal_gradient: bool = _flag(
        False,
        "FedProx's term is differentiated; otherwise it only shows in the reported "
        "loss.",
        FIDELITY,
        head=False,
        paper=True,
    )
    optimizer_state: str = _flag(
        "sequential",
        "The optimizer's accumulators: handed from client to client (sequential), new "
        "for each client and round (fresh), broadcast and averaged like weights "
        "(averaged), or kept by each client until it trains again (client; methods "
        "with a dense classifier).",
        FIDELITY,
        choices=("sequential", "fresh", "averaged", "client"),
        head="sequential",
        paper="fresh",
    )
    aggregation: str = _flag(
        "uniform",
        "Weight of a client in the mean: equal, or its number of images (examples).",
        FIDELITY,
        choices=("uniform", "examples"),
        head="uniform",
        paper="examples",
    )
    absent_class: str = _flag(
        "mask",
        "A class that a helper lacks: left out (mask), or filled with the mean over "
        "the kept prototypes that have it (fill).",
        FIDELITY,
        choices=("mask", "fill"),
        head="fill",
        paper="mask",
    )
    helper_policy: str = _flag(
        "all_kept",
        "Helpers in training: all kept prototypes, or the newest --helper_cnt.",
        FIDELITY,
        choices=("all_kept", "newest"),
        head="newest",
        paper="newest",
    )
    eval_prototypes: str = _flag(
        "all_kept",
        "Prototypes in evaluation: all kept with this round's, or the newest "
        "--helper_cnt.",
        FIDELITY,
        choices=("all_kept", "newest"),
        head="newest",
        paper="newest",
    )
    idle_unlabeled: str = _flag(
        "pass",
        "Unlabelled images before they count: passed through the network (they shape "
        "batch statistics), or neither drawn nor passed (skip).",
        FIDELITY,
        choices=("pass", "skip"),
        head="skip",
        paper="skip",
    )
    sl_batch_size: int = _flag(
        32,
        "Batch size of the supervised method; 0 takes all of a client's images at "
        "once.",
        FIDELITY,
        at_least=0,
        head=0,
        paper=32,
    )
    baseline_lr: str = _flag(
        "constant",
        "Learning rate over the rounds of methods with a dense classifier: constant, "
        "cos(15 pi r / 32 R) as in the authors' program (cosine), or cos(7 pi r / 16 "
        "R) as in FixMatch and FedRGD (cosine_7_16).",
        FIDELITY,
        choices=("constant", "cosine", "cosine_7_16"),
        head="cosine",
        paper="constant",
    )

    is_sl: bool = _flag(
        False,
        "The authors' flag for the supervised baseline: --method=fedavg with the "
        "flags' own defaults.",
        BASELINES,
        theirs=True,
        describes_run=False,
    )
    fixmatch_recipe: str = _flag(
        "scripts",
        "How FixMatch trains: as the authors ran it (scripts), as their --fixmatch "
        "does (flag), or as FixMatch's own paper says (published).",
        BASELINES,
        choices=("scripts", "flag", "published"),
    )
    helper_handout: str = _flag(
        "kept",
        "FedMatch: a client keeps its helpers until the next refresh (kept), or has "
        "them in the round of a refresh alone, as in the published program (refresh).",
        BASELINES,
        choices=("kept", "refresh"),
    )
    num_group: int = _flag(
        2, "FedRGD: groups that the active clients form.", BASELINES, at_least=1
    )
    group_mix_every: int = _flag(
        1,
        "FedRGD: rounds after which the groups' models become their mean.",
        BASELINES,
        at_least=1,
    )
    prototype_weight: float = _flag(
        1.0,
        "Weight of FedProto's pull towards the global prototypes.",
        BASELINES,
        at_least=0,
    )
    confidence_threshold: float = _flag(
        0.95,
        "Confidence that a pseudo-label must reach to count (FixMatch: exceed).",
        BASELINES,
        at_least=0,
        below=1,
    )
    fixmatch: bool = _flag(
        False,
        "The authors' flag for FixMatch.",
        BASELINES,
        theirs=True,
        describes_run=False,
    )

    def as_dict(self) -> Mapping[str, Any]:
        """The values by name, in order of declaration."""
        return attr.asdict(self)


def declarations() -> Tuple[Any, ...]:
    """The fields of the configuration with their metadata."""
    return attr.fields(ExperimentConfig)


def fidelity_columns() -> Mapping[str, Mapping[str, Any]]:
    """For each fidelity, the value of every switch."""
    return {
        fidelity: {
            f.name: f.metadata["columns"][fidelity]
            for f in declarations()
            if f.metadata["columns"]
        }
        for fidelity in FIDELITIES
    }
