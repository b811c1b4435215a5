"""Client states: what clients keep between rounds, stored under the number of the round that wrote it (its stamp).

A request of round t uses the newest state older than t, even if later states exist. So a client that is asked again
after a crash gives the same answer. An old state is removed once a checkpoint no longer needs it. Each file holds a
digest of its content, and each checkpoint a digest of all states. A file that was changed, exchanged or removed is an
error; the client does not silently start again without a state.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from spherefed.errors import RunError
from spherefed.files import parse_json, read_tensors, write_tensors
from spherefed.tensors import Tensors, digest

ClientState = Tensors
"""Plain tensors; a client of a stateless method has None."""


class ClientStateStore(Protocol):
    """Where the states of this process's clients are kept between requests."""

    def load(self, client: int, before: int) -> ClientState | None:
        """The newest state from before this round; None if the client has not trained yet."""
        ...

    def save(self, client: int, stamp: int, client_state: ClientState) -> None: ...


@dataclass(slots=True)
class InMemoryStates:
    """For fleets without a run directory: the two newest states of each client, so that a round can be repeated."""

    _stamps: dict[int, dict[int, ClientState]] = field(default_factory=dict)

    def load(self, client: int, before: int) -> ClientState | None:
        stamps = self._stamps.get(client, {})
        newest = max((s for s in stamps if s < before), default=None)
        return None if newest is None else stamps[newest]

    def save(self, client: int, stamp: int, client_state: ClientState) -> None:
        stamps = self._stamps.get(client, {})
        newest = max((s for s in stamps if s < stamp), default=None)
        kept = {} if newest is None else {newest: stamps[newest]}
        self._stamps[client] = {**kept, stamp: client_state}


class StateDirectory:
    """Files `<client>.<round>.safetensors`: an idle client needs no RAM, and any process can serve any client."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._before: int | None = None
        self._newest: dict[int, int] = {}
        self._digests: dict[int, tuple[int, str]] = {}
        """Of each client the newest stamp and its digest, as of the last call of `digest`."""

    def load(self, client: int, before: int) -> ClientState | None:
        stamp = self._stamp(client, before)
        if stamp is not None:
            return self._read(client, stamp)
        self._check_first(client, [s for s in self._all().get(client, []) if s >= before], before)
        return None

    def save(self, client: int, stamp: int, client_state: ClientState) -> None:
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)  # client states are private
        started_from = self._stamp(client, stamp)
        metadata = {"started_from": "none" if started_from is None else str(started_from)}
        metadata["digest"] = _digest(client, stamp, metadata["started_from"], client_state)
        write_tensors(self._file(client, stamp), client_state, metadata)

    def digest(self, next_round: int) -> str:
        """SHA-256 over clients, stamps and digests of the states that `next_round` starts from.

        Only the headers of files that are new since the last call are read.
        """
        newest = {c: max(older) for c, s in self._all().items() if (older := [t for t in s if t < next_round])}
        if lost := sorted(self._digests.keys() - newest.keys()):
            raise RunError(f"{self.path}: the state of client {lost[0]} was there before, and is missing now")
        known = self._digests
        self._digests = {
            client: known[client]
            if known.get(client, (-1,))[0] == stamp
            else (stamp, self._header_digest(client, stamp))
            for client, stamp in sorted(newest.items())
        }
        lines = [f"{client} {stamp} {found}\n" for client, (stamp, found) in self._digests.items()]
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def check_present(self, next_round: int, last_trained: Mapping[int, int]) -> None:
        """Every client that trained before `next_round` must still have its state; raises RunError."""
        stamps = self._all()
        for client, last in last_trained.items():
            if not any(last <= stamp < next_round for stamp in stamps.get(client, ())):
                raise RunError(
                    f"{self.path}: the state of client {client}, which trained in round {last}, is missing; "
                    "restore it, or run the experiment again"
                )

    def check(self, next_round: int, expected: str, *, contents: bool = True) -> int:
        """Compare the states that `next_round` starts from with their digests; the number of files compared.

        Without `contents`, only the digests in the headers of the files are compared.
        """
        self._digests = {}
        found = self.digest(next_round)
        for client, (stamp, _) in self._digests.items() if contents else ():
            self._read(client, stamp)
        if found != expected:
            raise RunError(
                f"{self.path}: files of clients were removed, added or exchanged since round {next_round - 1}; "
                "restore them, or run the experiment again"
            )
        return len(self._digests)

    def prune(self, next_round: int) -> None:
        """Remove the states that only rounds before `next_round` use; the server has a checkpoint of that round."""
        for client, stamps in self._all().items():
            for stamp in sorted(s for s in stamps if s < next_round)[:-1]:
                self._file(client, stamp).unlink(missing_ok=True)

    def roll_back(self, next_round: int) -> None:
        """Before a run continues from a checkpoint: remove the states of later, unfinished rounds.

        Workers of a killed run may still write; the repeated round writes the same content. Raises RunError, before
        anything is removed, if a client has no older state although it needs one.
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

    def _read(self, client: int, stamp: int) -> ClientState:
        path = self._file(client, stamp)
        state, metadata = read_tensors(path)
        expected = metadata.get("digest")
        if expected is not None and expected != _digest(client, stamp, metadata.get("started_from", ""), state):
            raise RunError(f"{path} is not as client {client} wrote it in round {stamp}: its digest does not match")
        return state

    def _header_digest(self, client: int, stamp: int) -> str:
        """The digest in the header of a file; empty for a file of a release without digests."""
        path = self._file(client, stamp)
        try:
            with path.open("rb") as file:
                size = int.from_bytes(file.read(8), "little")
                header = parse_json(file.read(min(size, MAX_HEADER_BYTES)))
                return str(header.get("__metadata__", {}).get("digest", ""))
        except (OSError, ValueError, AttributeError) as error:
            raise RunError(f"{path} cannot be read: {error}") from error

    def _check_first(self, client: int, later: list[int], before: int) -> None:
        """Raise a RunError if the client has no older state although this is not its first round."""
        if later and read_tensors(self._file(client, min(later)))[1].get("started_from") != "none":
            raise RunError(f"{self.path}: the state of client {client} from before round {before} is missing")

    def _stamp(self, client: int, before: int) -> int | None:
        if before != self._before:  # states older than the round do not change during it: list them once
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
                if file.name.isascii() and client.isdigit() and stamp.isdigit() and suffix == "safetensors":
                    found.setdefault(int(client), []).append(int(stamp))
        return found

    def _file(self, client: int, stamp: int) -> Path:
        return self.path / f"{client}.{stamp}.safetensors"


MAX_HEADER_BYTES = 1 << 24


def _digest(client: int, stamp: int, started_from: str, state: ClientState) -> str:
    """SHA-256 over the tensors and whose they are, so that a file cannot take the place of another one."""
    return hashlib.sha256(f"{client} {stamp} {started_from} {digest(state)}".encode()).hexdigest()
