"""Statistics of one hostile client, changed at random: no calibration fails, and nobody else is rejected."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from spherefed.calibration import BalancedFfc, Calibration, Ccvr, FedCof, Ffc, FfcGcv, Lda, Ncm
from spherefed.calibration.refit import Refit
from spherefed.data.sources import digits
from spherefed.errors import FederationError
from spherefed.experiment import Data, Model
from spherefed.messages import MeasureReply, Reestimate, ReestimateReply, Request
from spherefed.nn.encoders import SmallNet
from spherefed.server.collection import calibrate, reestimate
from spherefed.server.federation import Fleet
from support.small import assembled, blobs, in_process

HOSTILE = 2
CALIBRATIONS: list[Calibration] = [
    *(Ffc(), FfcGcv(), BalancedFfc(), Lda(), Ncm(), FedCof(), Ccvr(num_virtual=3, refit=Refit(lr=0.1, epochs=1))),
]


def changed(tensor: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """The same shape and dtype, other values."""
    largest = torch.finfo(tensor.dtype).max if tensor.is_floating_point() else torch.iinfo(tensor.dtype).max
    flat = tensor.clone().reshape(-1)
    where = torch.from_numpy(rng.random(len(flat)) < rng.choice([0.05, 0.5, 1.0]))
    kind = rng.integers(7)
    if kind == 0:
        flat[where] = -flat[where]
    elif kind == 1:
        flat[where] = flat[where] * int(2 ** rng.integers(1, 40))
    elif kind == 2:
        flat = flat[torch.from_numpy(rng.permutation(len(flat)))]
    elif kind == 3:
        flat[where] = largest if rng.random() < 0.5 else -largest
    elif kind == 4:
        flat[where] = 0
    elif kind == 5:
        flat[where] = flat[where] + 1
    else:
        flat = torch.from_numpy(rng.integers(-(2**40), 2**40, size=len(flat))).to(tensor.dtype)
    return flat.reshape(tensor.shape)


class Hostile:
    """A fleet in which one client changes its moments at random."""

    def __init__(self, fleet: Fleet, seed: int) -> None:
        self.fleet, self.clients, self.seed = fleet, fleet.clients, seed

    def ask(self, clients: Sequence[int], request: Request) -> Iterator[Any]:
        for answer in self.fleet.ask(clients, request):
            if answer.client != HOSTILE or not isinstance(answer, MeasureReply | ReestimateReply):
                yield answer
                continue
            rng = np.random.default_rng(self.seed)  # a repeated request gets the same answer
            names = [name for name in sorted(answer.moments) if rng.random() < 0.5] or list(answer.moments)
            yield replace(answer, moments={**answer.moments, **{n: changed(answer.moments[n], rng) for n in names}})


@pytest.mark.parametrize("calibration", CALIBRATIONS, ids=lambda each: each.kind)
def test_random_statistics_of_one_client_never_end_a_calibration(calibration: Calibration) -> None:
    assembly = assembled(blobs(num_train=40), calibration=calibration)
    model, fleet, rejected = assembly.initial(), in_process(assembly), 0
    for seed in range(25):
        try:
            found = calibrate(calibration, Hostile(fleet, seed), model, assembly.context(model, 1))
        except FederationError as error:  # no quorum is asked for here
            raise AssertionError(str(error)) from error
        assert all(bool(tensor.isfinite().all()) for tensor in found.model.tensors().values())
        assert {line.client for line in found.rejected} <= {HOSTILE}
        rejected += bool(found.rejected)
    assert rejected > 0


class Recorded:
    """Replies that were made once."""

    def __init__(self, replies: list[Any]) -> None:
        self.replies, self.clients = replies, range(len(replies))

    def ask(self, clients: Sequence[int], request: Request) -> Iterator[Any]:
        return iter([self.replies[client] for client in clients])


def test_random_moments_of_one_client_never_make_running_statistics_infinite() -> None:
    network = Model(encoder=SmallNet(norm="batch"), batch_statistics="reestimate")
    assembly = assembled(digits(), calibration=None, model=network, data=Data(examples=80))
    model = assembly.initial()
    fleet = Recorded(list(in_process(assembly).ask(range(4), Reestimate(1, model))))
    for seed in range(60):
        found = reestimate(Hostile(fleet, seed), model, 1)
        assert all(bool(tensor.isfinite().all()) for tensor in found.model.buffers.values())
        assert {line.client for line in found.rejected} <= {HOSTILE}
    layer = next(name for name in fleet.replies[0].moments if name.endswith(".count")).removesuffix(".count")
    for client in range(2):  # two claims that are finite, and their sum is not
        moments = fleet.replies[client].moments
        fleet.replies[client] = replace(
            fleet.replies[client], moments={**moments, f"{layer}.count": torch.tensor(1.5e308, dtype=torch.float64)}
        )
    assert {line.client for line in reestimate(fleet, model, 1).rejected} == {0, 1}
