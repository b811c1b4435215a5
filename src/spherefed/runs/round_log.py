"""What a run writes while it trains: one line per round, one line per rejected reply, and checkpoints.

Checkpoints are written alternately to two files, so that one of them is always whole. A file is overwritten in place
and flushed to the disk: creating a new file and renaming it is as safe, but took a fifth of a round of a tiny model. A
digest tells a whole file from one that was being written. A checkpoint also holds digests of the lines and client
states that belong to it; resuming compares them.
"""

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from errno import ENOSPC
from pathlib import Path
from typing import Any

import torch

from spherefed.client.client_state import StateDirectory
from spherefed.errors import RunError, SpherefedError
from spherefed.files import overwrite, parse_json, read_file, read_tensors, tensors_to_bytes, write_bytes
from spherefed.messages import ModelState
from spherefed.runs.digests import CLIENT_STATES, sha256
from spherefed.server.collection import Calibrated
from spherefed.server.federation import Round
from spherefed.server.validation import Rejection
from spherefed.tensors import Tensors, add_prefix, digest, non_finite, strip_prefix

LOGGER = logging.getLogger("spherefed")

CHECKPOINTS = ("checkpoint.safetensors", "checkpoint-2.safetensors")
ROUNDS, REJECTIONS = "rounds.jsonl", "rejections.jsonl"
REMEDY = "restore the file, or remove it to continue from the other checkpoint (without any, the run begins anew)"
_ENCODER = json.JSONEncoder(ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where to continue: the next round, the model so far, the server's state."""

    next_round: int
    model: ModelState
    server_state: Tensors
    digests: Mapping[str, str] = field(default_factory=dict)
    """Of the files that belong to it, if it was read from a file."""


class GrowingDigest:
    """SHA-256 of a file of lines while it grows, and its values at the ends of the last two rounds.

    Each line is hashed when it is written: the file is not read again.
    """

    def __init__(self, content: bytes = b"", next_round: int = 0) -> None:
        self._sha = hashlib.sha256(content)
        self._marks = {next_round: self._sha.hexdigest()}

    def add(self, content: bytes) -> None:
        self._sha.update(content)

    def mark(self, next_round: int) -> None:
        """All lines of rounds before this one are written."""
        newest = max(self._marks)
        self._marks = {newest: self._marks[newest], next_round: self._sha.hexdigest()}

    def at(self, next_round: int) -> str | None:
        """The digest of the lines of rounds before this one; None if it is not known any more."""
        return self._marks.get(next_round)


class RoundLog:
    """The files of one run that grow with its rounds; `client_states` follows the checkpoints if clients keep state."""

    def __init__(self, folder: Path, client_states: StateDirectory | None = None) -> None:
        self._folder = folder
        self._client_states = client_states
        self._paths = [folder / name for name in CHECKPOINTS]
        self._newest_round = 0
        """The next round of the newest checkpoint."""
        self._next: int | None = None
        """Which of the two files the next checkpoint goes to: never the one that holds the newest."""
        self.before: Checkpoint | None = None
        """The checkpoint before the newest, when they were read."""
        self._digests: dict[str, GrowingDigest] = {}
        """Of the files of lines, as far as this object has written them."""

    def append_round(self, line: Mapping[str, Any], rejected: Iterable[Rejection]) -> None:
        """Add one round and its rejections."""
        self.append_rejections(rejected)
        self._append(ROUNDS, [line])
        for growing in self._digests.values():
            growing.mark(line["round"] + 1)

    def claims(self) -> dict[int, int]:
        """The examples that each client claimed in the last round in which its reply counted."""
        claims: dict[int, int] = {}
        for line in read_lines(self._folder / ROUNDS):
            claims.update(zip(line["clients"], line.get("examples", ()), strict=False))
        return claims

    def append_rejections(self, rejected: Iterable[Rejection]) -> None:
        """Add rejections, of a round or of what follows the rounds."""
        self._append(REJECTIONS, [asdict(rejection) for rejection in rejected])

    @contextmanager
    def keeping_rejections(self) -> Iterator[None]:
        """Record the rejections of an error that ends the block, so that the file says why the run ended."""
        try:
            yield
        except SpherefedError as error:
            self.append_rejections(error.rejected)
            raise

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Write it, on the disk when this returns; client states that no checkpoint needs any more are removed."""
        if self._next is None:
            self.newest_checkpoint()
        assert self._next is not None
        path = self._paths[self._next]
        metadata = {"next_round": str(checkpoint.next_round), **self._digests_at(checkpoint.next_round)}
        tensors = {**checkpoint.model.tensors(), **add_prefix("server", checkpoint.server_state)}
        metadata["digest"] = _whole_digest(digest(tensors), metadata)
        # The first checkpoint is written whole or not at all; from then on, the other file is whole.
        write = overwrite if path.exists() else write_bytes
        write(path, tensors_to_bytes(tensors, metadata))
        self._next = 1 - self._next
        if self._client_states is not None:  # the older checkpoint stays usable, should the newest be damaged
            self._client_states.prune(self._newest_round)
        self._newest_round = checkpoint.next_round

    def newest_checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint that is whole; None if there is none yet."""
        newest, self.before, self._next, faults = None, None, 0, []
        for index, path in enumerate(self._paths):
            if not path.exists():
                continue
            try:
                found = _read(path)
            except RunError as error:
                faults.append(str(error))
                continue
            if newest is None or found.next_round > newest.next_round:
                self.before = newest
                newest, self._next, self._newest_round = found, 1 - index, found.next_round
            else:
                self.before = found
        if faults and (newest is None or not all(path.is_file() for path in self._paths)):
            raise RunError(f"{'; '.join(faults)}; {REMEDY}")
        for fault in faults:
            LOGGER.warning("%s; the run continues from the checkpoint before it", fault)
        return newest

    def roll_back(self) -> Checkpoint | None:
        """Continue from the newest checkpoint: drop the lines and client states of later, unfinished rounds."""
        for name in (*CHECKPOINTS, ROUNDS, REJECTIONS):
            for temporary in self._folder.glob(f".{name}.*"):  # of a write that was interrupted
                temporary.unlink(missing_ok=True)
        checkpoint = self.newest_checkpoint()
        next_round = 0 if checkpoint is None else checkpoint.next_round
        kept = {name: _lines_before(self._folder / name, next_round) for name in (ROUNDS, REJECTIONS)}
        self._check(next_round, kept, {} if checkpoint is None else checkpoint.digests)
        if self._client_states is not None:
            self._client_states.roll_back(next_round)
        for name, content in kept.items():
            write_bytes(self._folder / name, content)
            self._digests[name] = GrowingDigest(content, next_round)
        return checkpoint

    def check(self, checkpoint: Checkpoint) -> None:
        """Compare the lines and client states before a checkpoint with its digests; raises RunError."""
        names = (ROUNDS, REJECTIONS)
        kept = {name: _lines_before(self._folder / name, checkpoint.next_round) for name in names}
        self._check(checkpoint.next_round, kept, checkpoint.digests)

    def copy_rounds(self, other: Path, checkpoint: Checkpoint) -> None:
        """Take over the lines of a finished run, then its last checkpoint.

        The checkpoint comes last: without it, a run killed in between starts again from round 0.
        """
        for name in (REJECTIONS, ROUNDS):
            content = _lines_before(other / name, checkpoint.next_round)
            write_bytes(self._folder / name, content)
            self._digests[name] = GrowingDigest(content, checkpoint.next_round)
        self.save_checkpoint(checkpoint)

    def _append(self, name: str, lines: Iterable[Mapping[str, Any]]) -> None:
        path = self._folder / name
        if name not in self._digests:
            self._digests[name] = GrowingDigest(read_file(path) if path.exists() else b"")
        if content := b"".join(_ENCODER.encode(line).encode() + b"\n" for line in lines):
            with open(path, "ab", buffering=0) as file:  # noqa: PTH123 - three times as fast as Path.open
                if file.write(content) < len(content):
                    raise OSError(ENOSPC, "the line was not written whole", str(path))
            self._digests[name].add(content)

    def _digests_at(self, next_round: int) -> dict[str, str]:
        """Digests of the lines and client states of the rounds before this one."""
        found = {}
        for name in (ROUNDS, REJECTIONS):
            known = self._digests[name].at(next_round) if name in self._digests else None
            found[name] = known or sha256(_lines_before(self._folder / name, next_round))
        if self._client_states is not None:
            found[CLIENT_STATES] = self._client_states.digest(next_round)
        return found

    def _check(self, next_round: int, kept: Mapping[str, bytes], expected: Mapping[str, str]) -> None:
        for name, content in kept.items():
            if name in expected and sha256(content) != expected[name]:
                raise RunError(
                    f"{self._folder / name} is not as the run wrote it: its lines before round {next_round} do not "
                    "match the digest in the checkpoint; restore the file, or run the experiment again"
                )
        if self._client_states is not None and CLIENT_STATES in expected:
            if expected[CLIENT_STATES] != sha256(b""):  # some are kept here, and not at sites
                self._client_states.check_present(next_round, _last_trained(kept[ROUNDS]))
            self._client_states.check(next_round, expected[CLIENT_STATES])


def round_line(done: Round, measured: Mapping[str, Any]) -> dict[str, Any]:
    """What is written of a round; `measured` is what its model reaches on the test set."""
    return {
        "round": done.index,
        "lr": done.lr,
        "loss": done.loss,
        "num_examples": done.num_examples,
        "clients": list(done.clients),
        "examples": list(done.examples),
        "bytes_down": done.traffic.down,
        "bytes_up": done.traffic.up,
        **measured,
        **({} if done.consistency is None else {"consistency": done.consistency}),
    }


def calibrated_line(calibrated: Calibrated, measured: Mapping[str, Any]) -> dict[str, Any]:
    """What is written of a calibration between rounds."""
    traffic = calibrated.traffic
    return {**measured, "summary": calibrated.summary, "bytes_down": traffic.down, "bytes_up": traffic.up}


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a JSON-lines file; a line cut short by a crash is left out."""
    return [line for _, line in _parsed_lines(path)]


def _parsed_lines(path: Path) -> list[tuple[bytes, dict[str, Any]]]:
    """Each whole line as it is in the file, and what it says."""
    if not path.exists():
        return []
    try:
        parsed = [(line, parse_json(line)) for line in read_file(path).split(b"\n")[:-1]]
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is damaged: {error}") from error
    for number, (_, line) in enumerate(parsed, start=1):
        if not isinstance(line, dict) or type(line.get("round")) is not int:
            raise RunError(f"{path} is damaged: line {number} must be an object with a whole number 'round'")
    return parsed


def _lines_before(path: Path, next_round: int) -> bytes:
    """The lines of the rounds before this one, with what came before round 0; nothing if no round is finished."""
    return b"".join(raw + b"\n" for raw, line in _parsed_lines(path) if line["round"] < next_round and next_round)


def _last_trained(lines: bytes) -> dict[int, int]:
    """The last round in which each client's reply counted and had examples."""
    last: dict[int, int] = {}
    for line in map(json.loads, lines.splitlines()):
        replies = zip(line.get("clients", ()), line.get("examples", ()), strict=False)
        last |= {client: line["round"] for client, num_examples in replies if num_examples}
    return last


def _read(path: Path) -> Checkpoint:
    tensors, metadata = read_tensors(path)
    try:
        next_round = int(metadata["next_round"])
        if not 0 <= next_round < 2**63:
            raise ValueError(f"its next round is {next_round}")
        model = ModelState.from_tensors({n: t for n, t in tensors.items() if not n.startswith("server.")})
    except (KeyError, ValueError) as error:
        raise RunError(f"{path} is not a checkpoint: {error}") from error
    if name := non_finite(tensors):
        raise RunError(f"{path} cannot be used: {name!r} is not finite")
    if ROUNDS in metadata:
        found = _whole_digest(digest(tensors), metadata)
    else:  # of a release whose checkpoints had no digests of other files
        found = digest({**tensors, "next_round": torch.tensor(next_round)})
    if metadata.get("digest") != found:
        raise RunError(f"{path} is not whole: its digest does not match its content")
    digests = {name: metadata[name] for name in (ROUNDS, REJECTIONS, CLIENT_STATES) if name in metadata}
    return Checkpoint(next_round, model, strip_prefix("server", tensors), digests)


def _whole_digest(of_tensors: str, metadata: Mapping[str, str]) -> str:
    """Of a whole checkpoint: the digest of its tensors, and the metadata beside the digest itself."""
    others = {name: value for name, value in metadata.items() if name != "digest"}
    return hashlib.sha256(f"{json.dumps(others, sort_keys=True)} {of_tensors}".encode()).hexdigest()
