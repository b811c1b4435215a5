"""The start of a training with a `ridge-start` head: the head comes from one upload of every client."""

import time

from spherefed.assembly import Assembly
from spherefed.losses import CrossEntropy
from spherefed.messages import BEFORE_TRAINING, ModelState
from spherefed.nn.heads import RidgeStart
from spherefed.runs.directory import START, RunDirectory, write_json
from spherefed.runs.round_log import Checkpoint, RoundLog
from spherefed.server.collection import calibrate
from spherefed.server.federation import Fleet

FED3R_SCALE = 10.0
"""Fed3R trains from the ridge head with a softmax temperature of 0.1."""


def ridge_start(
    assembly: Assembly, fleet: Fleet, directory: RunDirectory, log: RoundLog, initial: ModelState
) -> Checkpoint:
    """Where round 0 begins: the initial model with the ridge head. What was collected is written to `start.json`."""
    experiment, head = assembly.experiment, assembly.experiment.model.head
    assert isinstance(head, RidgeStart)
    assert assembly.config.start is not None
    began = time.perf_counter()
    context = assembly.context(initial, BEFORE_TRAINING)
    limits = experiment.limits.of_measuring({})
    solved = calibrate(assembly.config.start, fleet, initial, context, quorum=experiment.quorum, limits=limits)
    log.append_rejections(solved.rejected)
    scale = head.scale or (FED3R_SCALE if isinstance(experiment.loss, CrossEntropy) else 1.0)
    start = {
        "summary": {**solved.summary, "scale": scale},
        "bytes_down": solved.traffic.down,
        "bytes_up": solved.traffic.up,
        "seconds": time.perf_counter() - began,
    }
    write_json(directory.path / START, start)
    return Checkpoint(0, initial.with_head(assembly.local_model.head_of(solved.model) * scale), {})
