"""The methods: one file each, one line here."""

from __future__ import annotations

from typing import Mapping, Type

from fl.methods.base import Method
from fl.methods.fedavg import FedAvg
from fl.methods.fixmatch import FixMatch
from fl.methods.protofssl import ProtoFSSL

REGISTRY: Mapping[str, Type[Method]] = {
    "protofssl": ProtoFSSL,
    "fedavg": FedAvg,
    "fixmatch": FixMatch,
}
