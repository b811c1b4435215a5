"""A guard against regressions of speed that no noise can trip: it counts operations, not seconds.

The bounds are what the code takes today, with the pinned torch; whoever lowers a count lowers its bound.
"""

import sys
from collections import Counter
from collections.abc import Mapping
from types import FrameType
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from spherefed.assembly import Assembly
from spherefed.calibration.ffc import Accumulator
from spherefed.client.training import LocalTraining
from spherefed.data.partition import Partition
from spherefed.engines.local import InProcess
from spherefed.experiment import Model
from spherefed.losses import CrossEntropy
from spherefed.nn.encoders import Mlp
from spherefed.server.federation import federate
from support.small import CPU, assembled, blobs, with_stack

COPIES = ("clone", "copy_", "_to_copy", "index_select", "cat", "stack")
NUM_STEPS = 3

W = TypeVar("W", "Operations", "Calls")


class Operations(TorchDispatchMode):
    """Counts what reaches torch, by name, the bytes that copies make and what `addmm_` multiplies."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.bytes_copied = self.multiplications = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        self.counts[name] += 1
        result = func(*args, **(kwargs or {}))
        if name in COPIES and isinstance(result, torch.Tensor):
            self.bytes_copied += result.nbytes
        if name == "addmm_":
            self.multiplications += args[1].numel() * args[2].shape[1]
        return result


class Calls:
    """Counts the Python functions that are called, by name."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def __enter__(self) -> "Calls":
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            self.counts[frame.f_code.co_name] += 1


def one_round(num_clients: int, stack: int = 0) -> Operations:
    return _watched_round(Operations(), num_clients, stack)


def _watched_round(watch: W, num_clients: int, stack: int = 0) -> W:
    """A round of FedAvg with a learned head: four of so many clients, each with 24 examples in three batches."""
    few = assembled(
        blobs(),
        model=Model(encoder=Mlp(widths=(8,))),
        loss=CrossEntropy(),
        calibration=None,
        local=LocalTraining(lr=0.5, epochs=1, batch_size=8),
        cohort=4,
        rounds=1,
    )
    parts = tuple((np.arange(24) + client) % 90 for client in range(num_clients))  # overlapping
    partition = Partition(parts, np.zeros((num_clients, 3), np.int64))
    assembly = Assembly(few.experiment, few.dataset, partition, few.local_model)
    fleet = InProcess(with_stack(assembly, stack).clients)
    rounds = federate(fleet, assembly.initial(), assembly.plan())
    with watch as watched:
        next(rounds)
    return watched


@pytest.mark.parametrize(("stack", "most"), [(0, 393), (4, 275)])
def test_a_round_takes_no_more_operations_than_it_did(stack: int, most: int) -> None:
    operations = one_round(1000, stack=stack)
    assert operations.counts.total() <= most


def test_a_client_of_a_plain_network_costs_few_python_calls() -> None:
    counts = _watched_round(Calls(), 1000).counts
    assert counts.total() <= 812  # 50 of them because each of four replies may be any object, or move the model too far
    assert counts["_wrapped_call_impl"] == 0  # layers are not called as modules, nor looked for again and again
    assert counts["named_modules"] == counts["modules"] == 0
    assert counts["unlike"] == 4 * 3  # every reply's params, buffers and extras
    assert counts["mismatch"] == counts["not_plain"] == 0  # only for what is wrong


def test_a_client_takes_one_forward_pass_and_one_update_per_step() -> None:
    counts = one_round(1000).counts
    num_steps = 4 * NUM_STEPS
    assert counts["addmm"] == num_steps  # the one layer with a bias
    assert counts["_log_softmax"] == counts["_log_softmax_backward_data"] == num_steps
    stacked = one_round(1000, stack=4).counts
    assert stacked["baddbmm"] == NUM_STEPS
    assert stacked["_log_softmax"] == NUM_STEPS


def test_a_round_costs_the_same_however_many_clients_sit_idle() -> None:
    few, many = one_round(100), one_round(100_000)
    assert few.counts == many.counts
    assert few.bytes_copied == many.bytes_copied


def test_statistics_take_little_more_than_half_the_work_of_the_whole_product() -> None:
    n, dim = 512, 1024
    accumulator = Accumulator(dim, 4, CPU)
    with Operations() as operations:
        accumulator.add(torch.randn(n, dim), torch.zeros(n, dtype=torch.int64))
        accumulator.total()
    assert n * dim * dim / 2 <= operations.multiplications <= 0.6 * n * dim * dim
