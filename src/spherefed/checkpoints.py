"""Where a run goes on after a crash: two files, written by turns, so that one of them is always whole.

A file is overwritten where it lies and flushed to the disk. To make a new one and put it in the old one's place is as
safe, but took a fifth of a round of a tiny model. A digest tells a whole file from one that was being written.
"""

from dataclasses import dataclass
from pathlib import Path

import torch

from spherefed.errors import RunError
from spherefed.files import overwrite, pack, read_tensors, write_bytes
from spherefed.messages import ModelState
from spherefed.tensors import Tensors, digest, prefixed, under

NAMES = ("checkpoint.safetensors", "checkpoint-2.safetensors")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where to go on: the next round, the model so far, the server's memory."""

    next_round: int
    model: ModelState
    memory: Tensors


class Checkpoints:
    """The two files of one run."""

    def __init__(self, folder: Path) -> None:
        self._paths = [folder / name for name in NAMES]
        self._place: int | None = None
        """Which of them the next checkpoint goes to: never the one that holds the newest."""

    def save(self, checkpoint: Checkpoint) -> None:
        """On the disk when it returns."""
        if self._place is None:
            self.load()
        assert self._place is not None
        path = self._paths[self._place]
        tensors = {**checkpoint.model.tensors(), **prefixed("server", checkpoint.memory)}
        metadata = {"next_round": str(checkpoint.next_round), "digest": _digest(tensors, checkpoint.next_round)}
        # A file that is there was whole once: who is killed in his first checkpoint has none, and not half of one.
        write = overwrite if path.exists() else write_bytes
        write(path, pack(tensors, metadata))
        self._place = 1 - self._place

    def load(self) -> Checkpoint | None:
        """The newest that is whole; None if there was none yet."""
        newest, self._place, faults = None, 0, []
        for place, path in enumerate(self._paths):
            if not path.exists():
                continue
            try:
                found = _read(path)
            except RunError as error:
                faults.append(str(error))
                continue
            if newest is None or found.next_round > newest.next_round:
                newest, self._place = found, 1 - place
        if newest is None and faults:
            raise RunError("; ".join(faults))
        return newest


def _read(path: Path) -> Checkpoint:
    tensors, metadata = read_tensors(path)
    try:
        next_round = int(metadata["next_round"])
        model = ModelState.from_tensors({n: t for n, t in tensors.items() if not n.startswith("server.")})
    except (KeyError, ValueError) as error:
        raise RunError(f"{path} is no checkpoint: {error}") from error
    if metadata.get("digest") != _digest(tensors, next_round):
        raise RunError(f"{path} is not whole: its digest is not that of its content")
    return Checkpoint(next_round, model, under("server", tensors))


def _digest(tensors: Tensors, next_round: int) -> str:
    return digest({**tensors, "next_round": torch.tensor(next_round)})
