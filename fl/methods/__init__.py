"""The methods: one file each, one line here."""

from __future__ import annotations

from typing import Mapping, Type

from fl.methods.base import Method, Setup
from fl.methods.fedavg import FedAvg
from fl.methods.protofssl import ProtoFSSL

REGISTRY: Mapping[str, Type[Method]] = {
    "protofssl": ProtoFSSL,
    "fedavg": FedAvg,
}


def make_method(setup: Setup) -> Method:
    """The method that the configuration names."""
    return REGISTRY[setup.config.method](setup)
