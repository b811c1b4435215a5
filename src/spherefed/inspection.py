"""Looking into a federation: local models are had again by asking clients for the same round again.

Training is a pure function of model, round, client and memory, so nothing need be kept for this while a run goes on.
Clients are asked one by one: where the run stacked them, their models are the same up to rounding.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spherefed.assembly import Assembly
from spherefed.errors import ConfigError
from spherefed.evaluation import BATCH_SIZE
from spherefed.memory import MemoryStore
from spherefed.messages import Train
from spherefed.tensors import one_thread


@dataclass(frozen=True, eq=False, slots=True)
class LocalFeatures:
    """What one client's local model makes of some test examples."""

    client: int
    features: Tensor
    """(n, l), as the head sees them: on the unit sphere if the model normalises."""
    labels: Tensor
    indices: Tensor
    """(n,): positions in the test set, the same for every client."""


def local_features(
    assembly: Assembly,
    request: Train,
    clients: Sequence[int],
    classes: Sequence[int],
    memory: MemoryStore | None = None,
) -> list[LocalFeatures]:
    """Features of the test examples of these classes, by these clients' local models after this round (Fig. 3).

    `request` is what the server asked in that round (`federation.opening` of a checkpoint); `memory` what clients
    remember, which is read and never written.
    """
    test = assembly.dataset.test
    if not len(test):
        raise ConfigError("there is no test set to take features of: data.pooled gave it to the clients")
    indices = torch.isin(test.all_labels(), torch.tensor(list(classes), dtype=torch.int64)).nonzero().squeeze(1)
    chosen, bench, found = test.take(indices), assembly.bench, []
    for number in clients:
        remembered = None if memory is None else memory.load(number, before=request.round)
        assembly.client(number).handle(request, remembered)  # leaves the local model on the bench
        bench.classifier.eval()
        with torch.inference_mode(), one_thread():
            batches = chosen.in_order(BATCH_SIZE, device=bench.device)
            rows = [bench.classifier.features(inputs).cpu() for inputs, _ in batches]
        features = torch.cat(rows) if rows else torch.zeros(0, bench.classifier.head.weight.shape[1])
        found.append(LocalFeatures(number, features, chosen.all_labels(), indices))
    return found
