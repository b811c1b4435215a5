"""Table 10: how long it takes to make a fixed head."""

import time

from spherefed.nn.heads import Head, Orthonormal
from spherefed.tensors import one_thread

NUM_CLASSES, DIM = 100, 1280
"""The head of Table 10: CIFAR-100 with MobileNetV2."""


def head_seconds(head: Head, seed: int) -> float:
    """Processor time of one core to make a head of the size in Table 10."""
    with one_thread():
        Orthonormal().build(2, 2, seed)  # loads the library of linear algebra
        began = time.thread_time()
        head.build(NUM_CLASSES, DIM, seed)
        return round(time.thread_time() - began, 4)
