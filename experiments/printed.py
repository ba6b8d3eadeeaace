"""What the paper prints (Kim et al. 2022, arXiv:2205.13921), and which settings it has.

Values are test accuracies in per cent. Figures are plotted without numbers, also on
their x axes: the values there are ours, and span what the text tells of them.
"""

from __future__ import annotations

from typing import Mapping, Optional, Sequence, Tuple

Values = Tuple[Optional[float], ...]

COLUMNS: Mapping[str, str] = {
    "cifar10_iid": "CIFAR-10 i.i.d.",
    "cifar10_noniid": "CIFAR-10 non-i.i.d.",
    "svhn_iid": "SVHN i.i.d.",
    "svhn_noniid": "SVHN non-i.i.d.",
    "stl10": "STL-10",
}
CIFAR_COLUMNS: Mapping[str, str] = {
    "cifar10_iid": "i.i.d.",
    "cifar10_noniid": "non-i.i.d.",
}

# Table 3: name, method, whether with FedProx, and values by column.
MAIN: Mapping[str, Tuple[str, str, bool, Values]] = {
    "FedAvg-SL": ("fedavg_sl", "fedavg_sl", False, (81.7, 80.0, 93.4, 91.7, None)),
    "FedProx-SL": ("fedprox_sl", "fedavg_sl", True, (83.0, 81.2, 95.3, 93.9, None)),
    "FedAvg": ("fedavg", "fedavg", False, (62.2, 62.2, 83.5, 83.5, 72.3)),
    "FedProx": ("fedprox", "fedavg", True, (62.7, 62.7, 83.9, 83.9, 72.0)),
    "FixMatch-FedAvg": (
        "fixmatch_fedavg",
        "fixmatch",
        False,
        (62.4, 61.8, 86.5, 87.0, 73.7),
    ),
    "FixMatch-FedProx": (
        "fixmatch_fedprox",
        "fixmatch",
        True,
        (63.4, 61.6, 87.6, 87.5, 73.6),
    ),
    "FedMatch": ("fedmatch", "fedmatch", False, (57.7, 59.1, 82.9, 81.9, 66.1)),
    "ProtoFSSL-FedAvg": (
        "protofssl_fedavg",
        "protofssl",
        False,
        (67.8, 66.5, 88.3, 88.1, 76.4),
    ),
    "ProtoFSSL-FedProx": (
        "protofssl_fedprox",
        "protofssl",
        True,
        (68.1, 67.6, 88.6, 88.8, 76.6),
    ),
    "FedRGD": ("fedrgd", "fedrgd", False, (69.7, 63.4, None, None, None)),
    "ProtoFSSL(BN)-FedAvg": (
        "protofssl_bn_fedavg",
        "protofssl_bn",
        False,
        (73.9, 73.4, 93.8, 93.2, 78.2),
    ),
    "ProtoFSSL(BN)-FedProx": (
        "protofssl_bn_fedprox",
        "protofssl_bn",
        True,
        (73.9, 72.5, 91.1, 90.8, 79.3),
    ),
}

# Table 4: method, network, norm, and values i.i.d. and non-i.i.d.
NORMALISATION: Sequence[Tuple[str, str, str, Values]] = (
    ("FedAvg-SL", "ResNet9", "none", (81.7, 80.0)),
    ("FedAvg-SL", "ResNet9", "BN", (87.8, 86.8)),
    ("FedAvg-SL", "ResNet9", "GN", (85.7, 82.0)),
    ("FedAvg-SL", "ResNet9", "sBN", (88.8, 87.3)),
    ("FedAvg-SL", "ResNet18", "sBN", (88.8, 87.5)),
    ("ProtoFSSL", "ResNet8", "none", (66.1, 65.6)),
    ("ProtoFSSL", "ResNet8", "BN", (73.9, 73.4)),
    ("ProtoFSSL", "ResNet8", "GN", (68.3, 69.2)),
    ("ProtoFSSL", "ResNet8", "sBN", (73.6, 68.9)),
    ("ProtoFSSL", "ResNet17", "sBN", (74.0, 72.0)),
)

# Table 7: by unlabelled images an episode, i.i.d. and non-i.i.d.
UNLABELED_PER_EPISODE: Mapping[int, Values] = {
    10: (65.4, 65.4),
    20: (65.5, 65.7),
    30: (65.5, 65.9),
    50: (66.7, 66.7),
    100: (66.6, 66.6),
    200: (66.7, 66.5),
}

# Table 8: by active clients and local epochs.
LOCAL_EPOCHS: Mapping[int, Mapping[int, float]] = {
    5: {1: 30.2, 2: 41.4, 5: 63.9, 10: 66.1},
    20: {1: 38.8, 2: 42.7, 5: 64.7, 10: 65.1},
}

# Table 9: by the noise's standard deviation; the main table's columns.
NOISE: Mapping[str, Values] = {
    "0": (73.9, 73.4, 93.8, 93.2, 78.2),
    "0.01": (73.4, 72.0, 90.8, 90.7, 78.4),
    "0.05": (73.4, 72.4, 90.9, 90.6, 78.4),
    "0.1": (73.8, 72.4, 91.1, 91.2, 78.4),
    "0.5": (73.2, 71.4, 90.9, 91.2, 78.1),
    "5.0": (74.1, 73.6, 91.3, 91.1, 77.6),
    "10.0": (47.5, 45.9, 86.3, 86.2, 62.6),
}

ALGORITHM_2 = 34.0

# Figure 3: method and labelled images per class; at 54 nothing is left unlabelled.
LABEL_RATIO: Mapping[str, Tuple[str, Sequence[int]]] = {
    "FedAvg": ("fedavg", (5, 10, 20, 30, 40, 50, 54)),
    "FixMatch-FedAvg": ("fixmatch", (5, 10, 20, 30, 40, 50)),
    "FedMatch": ("fedmatch", (5, 10, 20, 30, 40, 50)),
    "ProtoFSSL-FedAvg": ("protofssl", (5, 10, 20, 30, 40, 50)),
}

# Figures 4 and 5: by active clients.
HELPER_COUNTS: Mapping[int, Sequence[int]] = {5: (1, 2, 3, 4, 5), 30: (1, 5, 10, 30)}
HELPER_INTERVALS: Mapping[int, Sequence[int]] = {5: (1, 2, 5, 10, 20), 30: (1, 5, 20)}

# FedProx's mu by method and data set: appendix A; FixMatch as the authors' scripts. The
# appendix has a row for FedProx-SL alone; it names STL-10, which only FedProx on the
# few labelled images can be, so that it stands for both.
_SUPERVISED_MU = {"cifar10": "0.01", "svhn": "0.0001", "stl10": "0.01"}
_PROTO_MU = {"cifar10": "0.01", "svhn": "0.001", "stl10": "0.01"}
MU: Mapping[str, Mapping[str, str]] = {
    "fedavg_sl": _SUPERVISED_MU,
    "fedavg": _SUPERVISED_MU,
    "fixmatch": {"cifar10": "0.1", "svhn": "0.1", "stl10": "0.01"},
    "protofssl": _PROTO_MU,
    "protofssl_bn": _PROTO_MU,
}
