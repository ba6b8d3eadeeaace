"""The folder of a run: what is where, who may write to it, and whether it may go on.

Nothing here imports TensorFlow: a run that cannot start says so at once.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import subprocess
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, Dict, List, Mapping, Optional, Tuple, Type

from fl import files
from flags.config import ExperimentConfig, declarations
from flags.errors import UsageError

LOCK_NAME = ".lock"
PACKAGES = ("tensorflow", "tensorflow-federated", "tensorflow-datasets", "numpy")


class FolderLost(Exception):
    """The folder of a run is gone in mid-run; the text is for the user."""


class RunFiles:
    """What lies where in the folder of a run."""

    def __init__(self, path: Path):
        self.path = path

    @property
    def config_file(self) -> Path:
        """The resolved configuration with versions."""
        return self.path / "config.json"

    @property
    def metrics_file(self) -> Path:
        """One row a round."""
        return self.path / "metrics.csv"

    @property
    def clients_file(self) -> Path:
        """One row a client and round."""
        return self.path / "clients.csv"

    @property
    def summary_file(self) -> Path:
        """The result."""
        return self.path / "summary.json"

    @property
    def curves_file(self) -> Path:
        """Accuracy and loss over the rounds."""
        return self.path / "curves.png"

    @property
    def checkpoints(self) -> Path:
        """The server's state after a round."""
        return self.path / "checkpoints"

    @property
    def client_states(self) -> Path:
        """What clients keep between rounds."""
        return self.path / "clients"

    @property
    def tensorboard(self) -> Path:
        """Event files."""
        return self.path / "tensorboard"

    @property
    def worker_log(self) -> Path:
        """What TFF's worker says."""
        return self.path / "worker.log"

    @property
    def weights_file(self) -> Path:
        """Weights and prototypes of the finished run."""
        return self.path / "model.npz"

    @property
    def keras_file(self) -> Path:
        """The network of the finished run."""
        return self.path / "model.keras"

    @property
    def own(self) -> Tuple[Path, ...]:
        """All of the above: what a run writes, and what may be removed with it."""
        return (
            self.config_file,
            self.metrics_file,
            self.clients_file,
            self.summary_file,
            self.curves_file,
            self.checkpoints,
            self.client_states,
            self.tensorboard,
            self.worker_log,
            self.weights_file,
            self.keras_file,
        )


class RunFolder(RunFiles):
    """`<out_dir>/<exp_name>`, held by one process at a time."""

    def __init__(self, config: ExperimentConfig):
        """Checks that the run may start or go on; changes nothing of an earlier one.

        Raises:
            UsageError: if the folder cannot be written, is in use, or holds a run that
                the flags do not allow to touch.
        """
        super().__init__(Path(config.out_dir) / config.exp_name)
        self._config = config
        self._lock: Optional[int] = None
        self._check_existing()
        self._acquire()
        try:
            # Another process may have begun a run between the look and the lock.
            self._check_existing()
        except UsageError:
            self._release()
            raise

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self._release()

    def begin(self, data_digest: str) -> None:
        """Makes the folder ready; removes an earlier run, if told so, or leftovers.

        Args:
            data_digest: names the data that the run trains on.

        Raises:
            UsageError: if the run that is to go on began with other data, or if the
                folder cannot be written.
            FolderLost: if it was removed or replaced since this process looked.
        """
        self.check_held()
        if self._config.resume and self.config_file.exists():
            self._check_same_data(data_digest)
        try:
            if self._config.overwrite:
                self._clear()
            files.remove_leftovers(self.path)
            # A run that goes on is not finished; its result comes anew at its end.
            for path in (self.summary_file, self.weights_file, self.keras_file):
                path.unlink(missing_ok=True)
            files.write_json(self.config_file, self._description(data_digest))
        except OSError as error:
            raise self._unusable(error) from None

    def check_held(self) -> None:
        """Makes sure that the folder is still the one that this process holds.

        Without it, a folder removed in mid-run would come back in part.

        Raises:
            FolderLost: if it was removed or replaced.
        """
        if self._lock is None or not _is_file(self._lock, self.path / LOCK_NAME):
            raise FolderLost(
                f"{self.path} was removed or replaced while the run was under way; "
                "the run stops"
            )

    def _check_existing(self) -> None:
        if not self._is_occupied():
            return
        if not self.config_file.exists() or self._is_of_others():
            raise UsageError(
                f"--exp_name: found files in {self.path} that are no run of ours; "
                "choose another name or --out_dir"
            )
        if self._config.resume:
            self._check_same_configuration()
        elif not self._config.overwrite:
            raise UsageError(
                f"--exp_name: found a run in {self.path}; --resume continues it, "
                "--overwrite replaces it"
            )

    def _is_of_others(self) -> bool:
        """Whether config.json is whole and has other things in it than ours have."""
        try:
            content = _read_json(self.config_file)
        except (OSError, ValueError):
            return False
        return isinstance(content, dict) and bool(content) and "config" not in content

    def _is_occupied(self) -> bool:
        try:
            return self.path.exists() and bool(self._contents())
        except OSError as error:
            raise self._unusable(error) from None

    def _contents(self) -> List[Path]:
        if not self.path.is_dir():
            raise UsageError(
                f"--out_dir: found a file at {self.path}, must be a folder"
            )
        return [
            path
            for path in self.path.iterdir()
            if path not in (self.path / LOCK_NAME, self.worker_log)
            and not files.is_leftover(path.name)
        ]

    def _unusable(self, error: OSError) -> UsageError:
        return UsageError(
            f"--out_dir: {self.path} cannot be written ({error.strerror}); "
            "name a folder that can"
        )

    def _acquire(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.path / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise self._unusable(error) from None
        if not _take(lock, self.path / LOCK_NAME):
            os.close(lock)
            raise UsageError(
                f"--exp_name: the run in {self.path} is in use by another process; "
                "wait for it or choose another name"
            )
        self._lock = lock

    def _release(self) -> None:
        """Lets go of the folder, and leaves none behind where no run began."""
        if self._lock is None:
            return
        # If not, somebody removed the folder, and another run may have it by now.
        is_ours = _is_file(self._lock, self.path / LOCK_NAME)
        if is_ours and not self._contents():
            files.remove_leftovers(self.path)
            (self.path / LOCK_NAME).unlink()
            if not _has_text(self.worker_log):  # Else it tells why none began.
                self.worker_log.unlink(missing_ok=True)
                self.path.rmdir()
        os.close(self._lock)
        self._lock = None

    def _clear(self) -> None:
        """Removes what a run writes; a file that the user put there stays.

        The configuration goes last: while it stands, this is a run of ours.
        """
        for path in reversed(self.own):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path == self.worker_log and path.is_file() and not path.is_symlink():
                os.truncate(path, 0)  # The workers of this run write to it already.
            else:
                path.unlink(missing_ok=True)

    def _check_same_configuration(self) -> None:
        """A run goes on only as what it began; more rounds are allowed."""
        before = read_config(self.config_file)
        now = self._config.as_dict()
        differing = [
            f"--{name} was {before.get(name)}, now {now[name]}"
            for name in _describing_flags()
            if before.get(name) != now[name]
        ]
        rounds = before.get("num_round")
        grown = isinstance(rounds, int) and rounds < now["num_round"]
        if grown and not depends_on_num_round(self._config):
            differing = [d for d in differing if not d.startswith("--num_round ")]
        if differing:
            raise UsageError(
                f"--resume: the run in {self.path} has another configuration: "
                f"{'; '.join(differing)}"
            )

    def _check_same_data(self, digest: str) -> None:
        if not began_with(self.config_file, digest):
            raise UsageError(
                f"--resume: the run in {self.path} began with other data than "
                f"--dataset={self._config.dataset} gives now; name the folder with the "
                "data of before by --data_dir"
            )

    def _description(self, data_digest: str) -> Mapping[str, Any]:
        return {
            "data_sha256": data_digest,
            "config": self._config.as_dict(),
            "python": platform.python_version(),
            "packages": {name: metadata.version(name) for name in PACKAGES},
            "git_commit": _git_commit(),
        }


def read_config(path: Path) -> Dict[str, Any]:
    """The flags of a run, from its config.json.

    Raises:
        UsageError: if the file cannot be read.
    """
    return dict(_read_description(path)["config"])


def began_with(config_file: Path, data_digest: str) -> bool:
    """Whether a run is on these data; one from before that was noted may be.

    Raises:
        UsageError: if its config.json cannot be read.
    """
    noted = _read_description(config_file).get("data_sha256", data_digest)
    return bool(noted == data_digest)


def _read_description(path: Path) -> Dict[str, Any]:
    try:
        description = _read_json(path)
        if isinstance(description["config"], dict):
            return dict(description)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise UsageError(
        f"{path}: cannot be read as a run's configuration; the run is damaged, "
        "--overwrite replaces it"
    )


def _read_json(path: Path) -> Any:
    """What a file of JSON says.

    Raises:
        OSError, ValueError: if it does not.
    """
    if not path.is_file():  # A pipe would be read for ever.
        raise ValueError(f"{path} is no regular file")
    try:
        return json.loads(path.read_text())
    except RecursionError:  # A thousand brackets, of somebody who means harm.
        raise ValueError(f"{path} is nested too deeply") from None


def depends_on_num_round(config: ExperimentConfig) -> bool:
    """Whether a run of more rounds differs from the start on."""
    if config.method == "mixmatch":  # The weight of its unlabelled term grows over it.
        return True
    return config.method != "protofssl" and config.baseline_lr != "constant"


def _take(lock: int, path: Path) -> bool:
    """Locks an open file, if no other process has it and it still has its name."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return _is_file(lock, path)


def _is_file(descriptor: int, path: Path) -> bool:
    """Whether an open file still has its name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


def _has_text(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _describing_flags() -> List[str]:
    return [
        f.name
        for f in declarations()
        if f.metadata["describes_run"] and f.name != "exp_name"
    ]


def _git_commit() -> Optional[str]:
    """The commit of this program's checkout; None where it is not a checkout."""
    try:
        result = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None if result.returncode == 0 else None
