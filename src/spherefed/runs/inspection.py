"""Inspect the local models of a federation (Fig. 3): the server repeats the clients' training requests.

Training is a pure function of model, round, client and client state, so a run need not store local models. Clients are
asked one at a time; if the run stacked them, their models are the same up to rounding.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spherefed.assembly import Assembly
from spherefed.client.client_state import ClientState, ClientStateStore
from spherefed.client.evaluation import BATCH_SIZE
from spherefed.client.handle import handle
from spherefed.data.examples import Examples
from spherefed.errors import ConfigError
from spherefed.messages import ModelState, Train, TrainReply
from spherefed.tensors import one_thread, strip_prefix


@dataclass(frozen=True, eq=False, slots=True)
class LocalFeatures:
    """The features that one client's local model gives for some test examples."""

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
    client_states: ClientStateStore | None = None,
) -> list[LocalFeatures]:
    """Features of the test examples of these classes, by these clients' local models after this round (Fig. 3).

    `request` is what the server asked in that round (`federation.train_request` of a checkpoint). `client_states` is
    what clients keep between rounds; it is read and never written.
    """
    test = assembly.test
    if not len(test):
        raise ConfigError("there is no test set to take features of: data.pooled gave it to the clients")
    indices = torch.isin(test.all_labels(), torch.tensor(list(classes), dtype=torch.int64)).nonzero().squeeze(1)
    chosen, found = test.take(indices), []
    for number in clients:
        state = None if client_states is None else client_states.load(number, before=request.round)
        ((reply, new_state),) = handle([assembly.clients[number]], request, [state])
        assert isinstance(reply, TrainReply)
        features = _features(assembly, request, reply, new_state or {}, chosen)
        found.append(LocalFeatures(number, features, chosen.all_labels(), indices))
    return found


def _features(assembly: Assembly, request: Train, reply: TrainReply, state: ClientState, examples: Examples) -> Tensor:
    """Features of a client's local model, which is the request's model plus the reply."""
    local_model, start = assembly.local_model, request.model
    trained = ModelState({n: p + reply.delta[n] for n, p in start.params.items()}, reply.buffers, start.head)
    local_model.load_state(trained, strip_prefix("private", state))
    local_model.set_training(False)
    with torch.inference_mode(), one_thread():
        batches = examples.in_order(BATCH_SIZE, device=local_model.device)
        rows = [local_model.classifier.features(inputs).cpu() for inputs, _ in batches]
    return torch.cat(rows) if rows else torch.zeros(0, local_model.classifier.head.weight.shape[1])
