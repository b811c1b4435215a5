"""What clients remember from round to round, stamped with the round that made it.

A request of round t starts from the newest memory older than t, whatever was written since: asked again after a crash,
a client gives the same answer. An older stamp goes only when the server has a checkpoint that no longer needs it.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from spherefed.errors import RunError
from spherefed.files import read_tensors, write_tensors
from spherefed.tensors import Tensors

Memory = Tensors
"""Plain tensors; a client of a stateless method has None."""


class MemoryStore(Protocol):
    """Where the memory of this process's clients is kept between requests."""

    def load(self, client: int, before: int) -> Memory | None:
        """As it was before this round; None if the client had not trained yet."""
        ...

    def save(self, client: int, stamp: int, memory: Memory) -> None: ...


@dataclass(slots=True)
class MemoryInRam:
    """For fleets without a run directory: the two newest stamps of each client, so that a round may be repeated."""

    _stamps: dict[int, dict[int, Memory]] = field(default_factory=dict)

    def load(self, client: int, before: int) -> Memory | None:
        stamps = self._stamps.get(client, {})
        newest = max((s for s in stamps if s < before), default=None)
        return None if newest is None else stamps[newest]

    def save(self, client: int, stamp: int, memory: Memory) -> None:
        stamps = self._stamps.get(client, {})
        newest = max((s for s in stamps if s < stamp), default=None)
        kept = {} if newest is None else {newest: stamps[newest]}
        self._stamps[client] = {**kept, stamp: memory}


class MemoryDirectory:
    """Files `<client>.<round>.safetensors`: an idle client costs no RAM, and any process may serve any client."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._before: int | None = None
        self._newest: dict[int, int] = {}

    def load(self, client: int, before: int) -> Memory | None:
        stamp = self._stamp(client, before)
        if stamp is not None:
            return read_tensors(self._file(client, stamp))[0]
        self._check_first(client, [s for s in self._all().get(client, []) if s >= before], before)
        return None

    def save(self, client: int, stamp: int, memory: Memory) -> None:
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)  # what a client keeps for itself
        started_from = self._stamp(client, stamp)
        metadata = {"started_from": "none" if started_from is None else str(started_from)}
        write_tensors(self._file(client, stamp), memory, metadata)

    def settle(self, next_round: int) -> None:
        """The server has a checkpoint from which `next_round` follows: drop what only earlier rounds started from."""
        for client, stamps in self._all().items():
            for stamp in sorted(s for s in stamps if s < next_round)[:-1]:
                self._file(client, stamp).unlink(missing_ok=True)

    def rewind(self, next_round: int) -> None:
        """Before going on from a checkpoint: drop what later, unfinished rounds left behind.

        Workers of a killed run may still be writing; what they write is what the repeated round will write. If a client
        has nothing older left, because the checkpoint is not the newest that was saved, that is said first.
        """
        found = self._all()
        for client, stamps in found.items():
            if min(stamps) >= next_round:
                self._check_first(client, stamps, next_round)
        for client, stamps in found.items():
            for stamp in stamps:
                if stamp >= next_round:
                    self._file(client, stamp).unlink(missing_ok=True)
        if self.path.is_dir():
            for torn in self.path.glob(".*.safetensors.*"):
                torn.unlink(missing_ok=True)

    def _check_first(self, client: int, later: list[int], before: int) -> None:
        """Nothing older: either this was the client's first round, or what it started from is gone already."""
        if later and read_tensors(self._file(client, min(later)))[1]["started_from"] != "none":
            raise RunError(f"{self.path}: client {client}'s memory from before round {before} is gone")

    def _stamp(self, client: int, before: int) -> int | None:
        if before != self._before:  # within a round nothing older than it comes or goes: look once
            found = {c: [s for s in stamps if s < before] for c, stamps in self._all().items()}
            self._newest = {c: max(stamps) for c, stamps in found.items() if stamps}
            self._before = before
        return self._newest.get(client)

    def _all(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        if self.path.is_dir():
            for file in self.path.iterdir():
                client, _, rest = file.name.partition(".")
                stamp, _, suffix = rest.partition(".")
                if client.isdigit() and stamp.isdigit() and suffix == "safetensors":
                    found.setdefault(int(client), []).append(int(stamp))
        return found

    def _file(self, client: int, stamp: int) -> Path:
        return self.path / f"{client}.{stamp}.safetensors"
