"""What a site remembers about itself between runs: the seed and fraction of its hold-out, and what it has answered.

The record makes limits hold over all runs: a server that could choose the hold-out would learn single examples from two
measures that differ in few examples. The file is private (0600) and never sent. An unreadable record is an error:
starting a new one would forget what was sent.
"""

import json
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from spherefed.data.examples import hold_out
from spherefed.data.partition import Indices
from spherefed.errors import ConfigError
from spherefed.files import write_bytes
from spherefed.rng import Purpose, stream
from spherefed.schema import from_plain, to_plain

SEED_BITS = 62


@dataclass(frozen=True, kw_only=True, slots=True)
class HoldOut:
    """Which of a site's own examples are for evaluation."""

    seed: int
    fraction: float

    def split(self, num_examples: int) -> tuple[Indices, Indices]:
        """Training and held-out positions: the same for every experiment."""
        return hold_out(num_examples, self.fraction, stream(self.seed, Purpose.HOLDOUT))


@dataclass(slots=True)
class SiteRecord:
    """The record and its file."""

    path: Path | None
    """None: kept in memory, for trials with data that all sites have."""
    hold_out: HoldOut | None = None
    measures: dict[str, list[str]] = field(default_factory=dict)
    """Data version → digests of the requests for statistics that were answered."""
    trainings: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Run → number of training requests that were answered, and the last round of them."""

    def stored_hold_out(self, fraction: float) -> HoldOut:
        """The hold-out of this site, drawn at the first use; another fraction later is refused."""
        if self.hold_out is None:
            self.hold_out = HoldOut(seed=secrets.randbits(SEED_BITS), fraction=fraction)
            self._write()
        if self.hold_out.fraction != fraction:
            raise ConfigError(
                f"held_out is {fraction} in site.toml, but {self.hold_out.fraction} was used before. Statistics of two "
                f"hold-outs can reveal single examples; restore the old value, or delete {self.path} to start anew"
            )
        return self.hold_out

    def add_measure(self, data_version: str, request: str, limit: int) -> None:
        """Note statistics before they are sent; raise a ConfigError if there were too many. Equal ones count once."""
        before = self.measures.setdefault(data_version, [])
        if request in before:
            return
        if len(before) >= limit:
            raise ConfigError(
                f"{len(before)} different statistics of these data were sent; this site allows at most {limit} "
                "(limits.max_measures in site.toml)"
            )
        before.append(request)
        self._write()

    def add_training(self, run: str, round_index: int, limit: int) -> None:
        """Note one training request of this run; raise a ConfigError if there were too many."""
        done, _ = self.trainings.get(run, (0, 0))
        if done >= limit:
            raise ConfigError(
                f"{done} training requests of this run were answered; this site allows at most {limit} "
                "(limits.max_rounds in site.toml)"
            )
        self.trainings[run] = (done + 1, round_index)
        self._write()

    def _write(self) -> None:
        plain = {
            "hold_out": None if self.hold_out is None else to_plain(self.hold_out),
            "measures": self.measures,
            "trainings": self.trainings,
        }
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path.touch(mode=0o600)
        write_bytes(self.path, json.dumps(plain, indent=1).encode())
        self.path.chmod(0o600)


def read_record(path: Path | None) -> SiteRecord:
    """The record in this file; a new one if there is none yet."""
    if path is None:
        return SiteRecord(None)
    for temporary in path.parent.glob(f".{path.name}.*"):  # of a write that was interrupted
        temporary.unlink(missing_ok=True)
    try:
        plain: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        kept = plain["hold_out"]
        return SiteRecord(
            path=path,
            hold_out=None if kept is None else from_plain(HoldOut, kept),
            measures={str(version): [str(each) for each in digests] for version, digests in plain["measures"].items()},
            trainings={str(run): (int(done), int(last)) for run, (done, last) in plain["trainings"].items()},
        )
    except FileNotFoundError:
        return SiteRecord(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ConfigError) as error:
        raise ConfigError(
            f"{path} cannot be read ({error}); restore it from a backup. Deleting it forgets which statistics were sent"
        ) from error


def frequent_classes(labels: "np.ndarray[Any, Any]", least: int) -> Indices:
    """The positions of the examples whose class occurs at least so often.

    >>> frequent_classes(np.array([3, 1, 3, 2, 3, 1]), 2)
    array([0, 1, 2, 4, 5])
    """
    _, inverse, counts = np.unique(labels, return_inverse=True, return_counts=True)
    return np.flatnonzero(counts[inverse] >= least)
