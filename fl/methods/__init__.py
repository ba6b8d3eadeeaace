"""The methods: one file each, one line of `flags.presets.METHODS`."""

from __future__ import annotations

import importlib
from typing import Type

from fl.methods.base import Method
from flags.presets import METHODS


def method_class(name: str) -> Type[Method]:
    """The class that the registry names."""
    module, _, kind = METHODS[name].made_by.partition(":")
    found: Type[Method] = getattr(importlib.import_module(module), kind)
    return found
