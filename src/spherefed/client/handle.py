"""A client is a function of a request, its data and its own state: `handle(clients, request, states)`.

Engines call `answer_group`, which loads client states, calls `handle` and saves the new states. A single client is a
group of one; only stacked training uses larger groups.
"""

import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spherefed.calibration import Calibration
from spherefed.client.batch_statistics import measure_moments
from spherefed.client.client_state import ClientState, ClientStateStore
from spherefed.client.corrections import NO_CORRECTION, Correction, LocalResult
from spherefed.client.evaluation import BATCH_SIZE, count_correct
from spherefed.client.local_model import LocalModel
from spherefed.client.personalization import Personalization, PersonalizationContext
from spherefed.client.training import LocalTraining, Orders, Trained, batch_orders, head_then_encoder, train
from spherefed.data.examples import NO_INDICES, Augment, Examples, with_held_out
from spherefed.errors import ClientError
from spherefed.losses import Loss
from spherefed.messages import (
    BEFORE_TRAINING,
    Evaluate,
    EvaluateReply,
    Failure,
    Measure,
    MeasureReply,
    Reestimate,
    ReestimateReply,
    Reply,
    Request,
    Train,
    TrainReply,
)
from spherefed.rng import Purpose, stream, torch_stream
from spherefed.tensors import Tensors, add_prefix, non_finite, one_thread, strip_prefix

ReplyAndState = tuple[Reply, ClientState | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientConfig:
    """What every client of a federation is configured with."""

    seed: int
    local: LocalTraining | None
    """None: nothing is trained."""
    loss: Loss
    prox_mu: float = 0.0
    correction: Correction | None = None
    personalization: Personalization | None = None
    calibration: Calibration | None = None
    start: Calibration | None = None
    """What gives the head that training starts from, if the seed does not."""
    min_samples: int = 2
    """Fewest examples for which statistics are measured: FFC's sums over one example reveal its features."""
    held_out: float = 0.0
    """Fraction of a client's own examples for its evaluation, not for training."""
    validation: float = 0.0
    """For tuning: evaluate on this fraction of the training examples instead of the held-out ones."""
    augment: Augment | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Client:
    """One client: its number, its data, the model of its process, and its configuration."""

    id: int
    examples: Examples
    held_out: Examples
    local_model: LocalModel
    config: ClientConfig


@dataclass(frozen=True, eq=False, slots=True)
class Clients:
    """All clients that this process can run: what they share, and which examples are whose."""

    config: ClientConfig
    local_model: LocalModel
    examples: Examples
    """The examples of all clients."""
    parts: Sequence[NDArray[np.int64]]
    """The indices of each client's examples."""

    @property
    def keep_state(self) -> bool:
        """Whether clients keep anything between rounds: a private part of the model, or a correction's state."""
        return bool(self.local_model.private) or self.config.correction is not None

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, number: int) -> Client:
        """Client k, created when it is needed: an idle client costs only its indices."""
        own = self.examples.take(self.parts[number])
        if not self.config.held_out:
            none = Examples(own.inputs, own.labels, own.prepare, NO_INDICES)
            return Client(number, own, none, self.local_model, self.config)
        config, rng = self.config, stream(self.config.seed, Purpose.HOLDOUT, number)
        kept, held_out = with_held_out(own, config.held_out, config.validation, rng)
        return Client(number, kept, held_out, self.local_model, self.config)


def answer_group(
    clients: Clients | Mapping[int, Client],
    numbers: Sequence[int],
    request: Request,
    store: ClientStateStore | None,
    *,
    stacked: bool,
    orders: Orders | None = None,
) -> list[Reply | Failure]:
    """The answers of a group; an error becomes a `Failure`. `store` holds client states; None if clients keep none."""
    stacked = stacked and isinstance(request, Train)
    try:
        states = [None if store is None else store.load(number, before=request.round) for number in numbers]
        answers = handle([clients[number] for number in numbers], request, states, stacked=stacked, orders=orders)
        for number, before, (_, after) in zip(numbers, states, answers, strict=True):
            if after is not None and after is not before:
                assert store is not None, "clients of a method without state return none"
                store.save(number, request.round, after)
    except Exception as error:
        if not stacked:
            return [Failure(number, f"{type(error).__name__}: {error}") for number in numbers]
        # Ask one at a time: then only the client that caused the error fails.
        alone = [answer_group(clients, [number], request, store, stacked=False)[0] for number in numbers]
        if not any(isinstance(each, Failure) for each in alone):
            warnings.warn(f"clients {list(numbers)} were not stacked, but trained one by one: {error}", stacklevel=1)
        return alone
    return [reply for reply, _ in answers]


def handle(
    clients: Sequence[Client],
    request: Request,
    states: Sequence[ClientState | None],
    *,
    stacked: bool = False,
    orders: Orders | None = None,
) -> list[ReplyAndState]:
    """Each client's reply and new state, which depend only on request, data and states; the model is scratch space.

    `stacked` trains the group as one computation; without it there is one client. `orders`: see `batch_orders`.
    """
    client, state, local_model = clients[0], states[0], clients[0].local_model
    purpose = Purpose.LAYERS if isinstance(request, Train | Evaluate) else Purpose.MEASURE
    key = (client.config.seed, purpose, request.round % 2**32, client.id)  # BEFORE_TRAINING is negative
    with one_thread(), torch_stream(*key, device=local_model.device) if local_model.uses_randomness else nullcontext():
        if isinstance(request, Train):
            orders = orders or [*batch_orders(client.config.seed, request.round, [each.id for each in clients])]
            return _train(clients, request, states, orders, stacked=stacked)
        local_model.load_state(request.model, strip_prefix("private", state) if state else {})
        match request:
            case Measure():
                return [(_measure(client, request), state)]
            case Reestimate():
                return [(_reestimate(client, request), state)]
            case Evaluate():
                return [(_evaluate(client, request), state)]


def _train(
    clients: Sequence[Client], request: Train, states: Sequence[ClientState | None], orders: Orders, *, stacked: bool
) -> list[ReplyAndState]:
    """Train every client of the group from the request's model, clients with most examples first."""
    by_size = sorted(range(len(clients)), key=lambda index: -len(clients[index].examples))
    group = [clients[index] for index in by_size]
    local_model, config = group[0].local_model, group[0].config
    assert config.local is not None, "an experiment with rounds = 0 trains nothing"
    state = {} if stacked else states[0] or {}  # experiments whose clients keep state are never stacked
    correction = NO_CORRECTION
    private = strip_prefix("private", state) if state else {}
    params = local_model.load_for_training(request.model, private, stacked=stacked)
    # FedProx anchors a private part at its own start of the round.
    anchor = request.model.params
    if local_model.private:
        anchor = {**local_model.private_state(), **anchor}
    if config.correction is not None:
        correction = config.correction.start(local_model, request, strip_prefix("correction", state))
    fedrep = config.local.head_epochs > 0
    for local, trained in head_then_encoder(config.local, params) if fedrep else [(config.local, params)]:
        results = train(
            local_model,
            [client.examples for client in group],
            [orders[index] for index in by_size],
            local=local,
            loss=config.loss,
            lr=request.lr,
            stacked=stacked,
            trained=trained,
            augment=config.augment,
            prox_mu=config.prox_mu,
            anchor=anchor,
            correction=correction,
        )
    updates = local_model.updates_from(request.model, len(group), stacked=stacked)
    answers = [_reply_and_state(*each, request, state) for each in zip(group, results, updates, strict=True)]
    return [answers[by_size.index(index)] for index in range(len(clients))]


def _reply_and_state(
    client: Client, result: Trained, update: tuple[Tensors, Tensors], request: Train, state: ClientState
) -> ReplyAndState:
    """The reply of a client that has trained, and its new state."""
    delta, buffers = update
    new_state: ClientState | None = None
    extra: Tensors = {}
    if client.local_model.private or client.config.correction is not None:
        new_state, extra = _new_state(client, result, delta, request, state)
    reply = TrainReply(
        client=client.id,
        round=request.round,
        # With BatchNorm, one example alone gives no step: that client counts as one without examples.
        num_examples=len(client.examples) if result.num_steps else 0,
        effective_steps=result.effective_steps,
        loss=result.loss,
        delta=delta,
        buffers=buffers,
        extra=extra,
    )
    return reply, new_state


def _new_state(
    client: Client, result: Trained, delta: Tensors, request: Train, state: ClientState
) -> tuple[ClientState, Tensors]:
    """What the client keeps until its next round, and what its correction sends beside the delta."""
    config, local_model = client.config, client.local_model
    kept: Tensors = {}
    extra: Tensors = {}
    if config.correction is not None:
        done = LocalResult(local_model, delta, request.lr * result.effective_steps, config.prox_mu)
        kept, extra = config.correction.finish(done, request, strip_prefix("correction", state))
    new_state = add_prefix("private", local_model.private_state()) | add_prefix("correction", kept)
    if name := non_finite(new_state):
        raise ClientError(f"training diverged: {name!r} is not finite; the client keeps its state of the round before")
    return new_state, extra


def _measure(client: Client, request: Measure) -> MeasureReply:
    calibration = client.config.start if request.round == BEFORE_TRAINING else client.config.calibration
    if calibration is None:
        raise ClientError("asked to measure, but the experiment has no calibration")
    _check_enough(client)
    batches = client.examples.in_order(BATCH_SIZE, device=client.local_model.device)
    moments = calibration.measure(client.local_model.classifier, batches)
    return MeasureReply(client.id, request.round, len(client.examples), moments)


def _reestimate(client: Client, request: Reestimate) -> ReestimateReply:
    """In random batches of the training size, as in training, but without augmentation, as in evaluation."""
    _check_enough(client)
    local_model, config = client.local_model, client.config
    assert config.local is not None, "a frozen encoder has no statistics to re-estimate"
    order = stream(config.seed, Purpose.REESTIMATE, request.round, client.id)
    batches = client.examples.epoch(
        config.local.batch_size, order, device=local_model.device, min_batch_size=local_model.smallest_batch
    )
    moments = measure_moments(local_model.classifier, batches, request.model.buffers)
    return ReestimateReply(client.id, request.round, len(client.examples), moments)


def _check_enough(client: Client) -> None:
    num, least = len(client.examples), client.config.min_samples
    if 0 < num < least:
        fault = f"statistics of {num} examples would reveal their features and labels"
        raise ClientError(f"{fault}; min_samples is {least}")


def _evaluate(client: Client, request: Evaluate) -> EvaluateReply:
    if request.personalize:
        _personalize(client, request)
    client.local_model.set_training(False)
    counts = count_correct(client.local_model.classifier, client.held_out, client.local_model.device)
    assert counts.by_class is not None
    return EvaluateReply(client.id, request.round, counts.total, counts.correct, {"counts": counts.by_class})


def _personalize(client: Client, request: Evaluate) -> None:
    """Personalize the loaded model. Its random streams are not used elsewhere: no training had this round number."""
    config, local_model = client.config, client.local_model
    if config.personalization is None:
        raise ClientError("asked to personalize, but the experiment has no personalization")
    context = PersonalizationContext(
        local_model=local_model,
        examples=client.examples,
        local=config.local,
        loss=config.loss,
        order=stream(config.seed, Purpose.BATCHES, request.round, client.id),
        augment=config.augment,
    )
    config.personalization.apply(context, request.extra)
