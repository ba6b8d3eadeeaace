"""What somebody who means harm puts into a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


class Trap:
    """Makes a file when unpickled."""

    def __init__(self, path: Path):
        self._path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._path),)
