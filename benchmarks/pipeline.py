"""What the input pipeline costs: gather, augment and prepare, as a share of a ConvNet training step.

Run it with `python benchmarks/pipeline.py`. The loop is the library's own `train`; only `Examples.epoch` is watched
from outside, so pipeline and step take turns batch by batch. CPU time on one thread, medians over batches. It ends with
exit code 1 if the share exceeds the goal.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import numpy as np
import torch

from spherefed.client.local_model import LocalModel
from spherefed.client.training import LocalTraining, train
from spherefed.data.augment import CropFlip
from spherefed.data.examples import Batch, Examples, Preparation
from spherefed.losses import CrossEntropy
from spherefed.nn.classifier import Classifier
from spherefed.nn.encoders import ConvNet
from spherefed.nn.heads import Learned
from spherefed.tensors import one_thread

GOAL = 0.05
NUM_IMAGES, NUM_CLASSES, SIDE = 50_000, 100, 32
WARM_UP = 5
"""Batches at the start that are not counted."""


class Watched:
    """Examples whose `epoch` notes, in CPU seconds, how long each batch took to make and how long it was used."""

    def __init__(self, examples: Examples) -> None:
        self.examples = examples
        self.making: list[float] = []
        self.using: list[float] = []

    def __len__(self) -> int:
        return len(self.examples)

    def epoch(self, *args: Any, **kwargs: Any) -> Iterator[Batch]:
        batches = self.examples.epoch(*args, **kwargs)
        start = time.process_time()
        for batch in batches:
            made = time.process_time()
            yield batch
            used = time.process_time()
            self.making.append(made - start)
            self.using.append(used - made)
            start = used


def main() -> int:
    parser = argparse.ArgumentParser(description="The input pipeline's share of a ConvNet training step.")
    parser.add_argument("--batches", type=int, default=100, help="batches to time (default 100)")
    parser.add_argument("--batch-size", type=int, default=64)
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    pixels = rng.integers(256, size=(NUM_IMAGES, 3, SIDE, SIDE), dtype=np.uint8)
    everything = Examples(
        torch.from_numpy(pixels),
        torch.from_numpy(rng.integers(NUM_CLASSES, size=NUM_IMAGES)),
        Preparation(scale=1 / 255, mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762)),
    )
    # A client's examples lie scattered over the data set.
    own = rng.permutation(NUM_IMAGES)[: (given.batches + WARM_UP) * given.batch_size]
    watched = Watched(everything.take(own))
    torch.manual_seed(0)
    encoder = ConvNet().build((3, SIDE, SIDE))
    head = Learned().build(NUM_CLASSES, 1024, 0)
    local_model = LocalModel(Classifier(encoder, head, num_classes=NUM_CLASSES, normalize=False))
    with one_thread():
        train(
            local_model,
            watched,  # type: ignore[arg-type]
            local=LocalTraining(lr=0.02, epochs=1, batch_size=given.batch_size),
            loss=CrossEntropy(),
            lr=0.02,
            order=np.random.default_rng(1),
            augment=CropFlip(),
        )
    making, using = median(watched.making[WARM_UP:]), median(watched.using[WARM_UP:])
    share = making / (making + using)
    print(f"{len(watched.making) - WARM_UP} batches of {given.batch_size}, medians of CPU time on one thread:")
    print(f"gather, augment, prepare {1e3 * making:.2f} ms; forward, backward, update {1e3 * using:.2f} ms")
    print(f"the pipeline is {share:.1%} of a training step; the goal is at most {GOAL:.0%}")
    return 0 if share <= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
