"""The methods: one file each, one line here."""

from __future__ import annotations

from typing import Mapping, Type

from fl.methods.base import Method
from fl.methods.fedavg import FedAvg
from fl.methods.fedproto import FedProto
from fl.methods.fixmatch import FixMatch
from fl.methods.mixmatch import MixMatch
from fl.methods.protofssl import ProtoFSSL
from fl.methods.sage import Sage

REGISTRY: Mapping[str, Type[Method]] = {
    "protofssl": ProtoFSSL,
    "fedavg": FedAvg,
    "fixmatch": FixMatch,
    "mixmatch": MixMatch,
    "sage": Sage,
    "fedproto": FedProto,
}
