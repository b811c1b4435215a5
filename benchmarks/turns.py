"""A contestant's side of the benchmark: it works when it is told "go", and says in one line how long that took.

Needs nothing but Python, because the peers' environments hold nothing of ours.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from processes import tree_cpu

Lap = Callable[[], None]
"""To be called after every round and its evaluation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """All rounds of a workload, once."""

    cpu: float
    """Seconds per timed round, of the whole process tree."""
    wall: float
    loss: float
    """Of the final model on the training set."""
    first_cpu: float
    """Since the process began, at the end of this turn's first round."""
    first_at: float
    """The same moment by the machine's monotonic clock."""


def serve(play: Callable[[Lap], float], *, warm_up: int, rounds: int) -> None:
    """Take turns until there is nobody to ask for one. `play` does every round and returns the final loss."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a contestant prints is no answer
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # and comes before its last words
    for _ in sys.stdin:
        moments: list[tuple[float, float]] = []
        marks = {1, warm_up, rounds}
        done = 0

        def lap(moments: list[tuple[float, float]] = moments, marks: set[int] = marks) -> None:
            nonlocal done
            done += 1
            if done in marks:
                moments.append((tree_cpu(), time.monotonic()))

        loss = play(lap)
        if done != rounds:
            raise RuntimeError(f"{done} rounds were done, {rounds} were asked for")
        (first_cpu, first_at), (cpu, wall), (cpu_after, wall_after) = moments[0], moments[-2], moments[-1]
        timed = rounds - warm_up
        turn = Turn(
            cpu=(cpu_after - cpu) / timed,
            wall=(wall_after - wall) / timed,
            loss=loss,
            first_cpu=first_cpu,
            first_at=first_at,
        )
        print(json.dumps(asdict(turn)), file=answers, flush=True)
