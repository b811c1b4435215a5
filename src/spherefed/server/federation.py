"""The round loop, written once against the small `Fleet` protocol; engines carry messages and know no algorithm.

The loop yields a record per round and takes no callbacks: progress, checkpoints and early stopping are the caller's
`for` body.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol

import torch

from spherefed.client.corrections import Correction
from spherefed.client.training import LocalTraining
from spherefed.messages import LEARNED_HEAD, Failure, ModelState, Reply, Request, Traffic, Train, TrainReply
from spherefed.rng import Purpose, stream, torch_stream
from spherefed.server.aggregation import Aggregate, Aggregator, CohortAggregator
from spherefed.server.algorithms import Algorithm
from spherefed.server.optimizers import ServerOptimizer
from spherefed.server.reply_checks import Limits
from spherefed.server.robust import Mean
from spherefed.server.validation import Rejection, ReplyLog
from spherefed.tensors import Tensors, add_prefix, non_finite, strip_prefix

MEDIAN_NORM, OUTLIER = "replies.median_norm", "replies.outlier"
"""Names in the server state: the median ‖Δ_k‖₂ of the last round with examples, and the client that moved the model far
more than the others, if there is one."""

State = tuple[ModelState, Tensors]
"""Model and server state between two rounds."""


class Fleet(Protocol):
    """Where clients live: the only thing an engine has to provide."""

    @property
    def clients(self) -> Sequence[int]: ...

    def ask(self, clients: Sequence[int], request: Request) -> Iterator[Reply | Failure]:
        """Answers in the order asked, streaming; a failure names its client and cause."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What the server does from the first round to the last."""

    learning_rates: tuple[float, ...]
    """The clients' learning rate in each round."""
    cohort: int | None
    """Clients per round; None: all of them."""
    algorithm: Algorithm
    seed: int
    quorum: float = 0.0
    """Fraction of the clients asked whose reply must count."""
    limits: Limits = field(default_factory=Limits)
    local: LocalTraining | None = None
    """How clients train, which bounds the number of steps they may claim; None: not known."""
    own_components: bool = False
    """Whether components of the user, such as a server optimizer, may draw from torch's generator."""

    @property
    def rounds(self) -> int:
        return len(self.learning_rates)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One finished round: the model it led to, the server's state, and what happened."""

    index: int
    lr: float
    model: ModelState
    server_state: Tensors
    """State of the server optimizer and of the drift correction, `MEDIAN_NORM` and `OUTLIER`."""
    num_examples: int
    loss: float
    clients: tuple[int, ...]
    """Clients whose reply was accepted."""
    examples: tuple[int, ...]
    """Examples that each of them claims."""
    rejected: tuple[Rejection, ...]
    traffic: Traffic
    consistency: dict[str, float] | None = None
    """SphereFed, Eq. 2 and 3: how far the clients' learned heads agree; None if heads are fixed or not shared."""


def federate(
    fleet: Fleet,
    model: ModelState,
    plan: Plan,
    *,
    start: int = 0,
    server_state: Tensors | None = None,
    before: State | None = None,
) -> Iterator[Round]:
    """Rounds `start` to the last, each yielded when it is over.

    Continuing from a yielded round's index + 1, model and server state gives the same rounds to the bit. `before` is
    what that round began with. If one of its replies moved the model so far that most clients diverge from there, its
    step is undone: the next round begins with `before`, and without that client.
    """
    state = (model, server_state or {})
    for t in range(start, plan.rounds):
        replies, mean, after = _ask_cohort(fleet, plan, t, state)
        if before is not None and OUTLIER in state[1] and replies.most_diverged():
            client, undone, state = int(state[1][OUTLIER]), replies.traffic, before
            replies, mean, after = _ask_cohort(fleet, plan, t, state, without=client)
            replies.traffic.add(undone)
        with replies.in_errors():
            replies.close(f"round {t}", plan.quorum)
        before, state = state, after
        yield Round(
            index=t,
            lr=plan.learning_rates[t],
            model=state[0],
            server_state=state[1],
            num_examples=0 if mean is None else mean.num_examples,
            loss=0.0 if mean is None else mean.loss,
            clients=tuple(replies.accepted),
            examples=tuple(replies.examples.values()),
            rejected=tuple(replies.rejected),
            traffic=replies.traffic,
            consistency=None if mean is None else mean.consistency,
        )


def _ask_cohort(
    fleet: Fleet, plan: Plan, t: int, state: State, without: int | None = None
) -> tuple[ReplyLog[TrainReply], Aggregate | None, State]:
    """Round t from this state; `without` the client whose reply to the round before is undone."""
    cohort, request = sample(fleet.clients, plan, t), train_request(plan, t, *state)
    limits = plan.limits.of_training(state[1].get(MEDIAN_NORM), plan.local)
    replies = ReplyLog(TrainReply, request, cohort, limits)
    if without is not None:
        replies.leave_out(without, f"its reply to round {t - 1} moved the model so far that most clients diverged")
    with replies.in_errors(), torch_stream(plan.seed, Purpose.SERVER, t) if plan.own_components else nullcontext():
        return replies, *_train_and_step(fleet, plan.algorithm, replies, state)


def _train_and_step(
    fleet: Fleet, algorithm: Algorithm, replies: ReplyLog[TrainReply], state: State
) -> tuple[Aggregate | None, State]:
    """The mean of the replies, and the model and server state that it leads to.

    If they are not finite, the reply with the largest norm is rejected and the round is repeated without it.
    `reject_outliers` names the other reasons to repeat it.
    """
    model, server_state = state
    while True:
        aggregator = _aggregator(algorithm, model)
        for answer in fleet.ask(replies.asked, replies.request):  # the clients train
            reply = replies.validate(answer)
            if reply is not None:
                aggregator.add(reply)
        if replies.reject_outliers():
            replies.repeat()
            continue
        mean = aggregator.result()
        if mean is None:  # a cohort without a single example changes nothing
            return None, state
        update, stepped = server_step(algorithm, mean, server_state, len(fleet.clients))
        params = {name: p + update[name] for name, p in model.params.items()}
        if (name := non_finite(params) or non_finite(mean.buffers) or non_finite(stepped)) is None:
            stepped = {**stepped, MEDIAN_NORM: torch.tensor(median(replies.norms.values()), dtype=torch.float64)}
            if (client := replies.outlier(algorithm.weigh == "examples")) is not None:
                stepped[OUTLIER] = torch.tensor(client)
            return mean, (ModelState(params, mean.buffers, model.head), stepped)
        replies.reject_largest(f"{name!r} of the new model is not finite, and this reply has the largest norm")
        replies.repeat()


def _aggregator(algorithm: Algorithm, model: ModelState) -> Aggregator | CohortAggregator:
    head = model.params.get(LEARNED_HEAD)
    if not isinstance(algorithm.aggregation, Mean):
        return CohortAggregator(algorithm.aggregation, head)
    assert algorithm.weigh is not None  # it was set when the algorithm was built
    return Aggregator(normalize_steps=algorithm.normalize_steps, weigh=algorithm.weigh, head=head)


def train_request(plan: Plan, t: int, model: ModelState, server_state: Tensors) -> Train:
    """What the server asks of clients in round t, given the model and the server state of the round before."""
    correction = plan.algorithm.correction
    extra = {} if correction is None else correction.broadcast(model, strip_prefix("correction", server_state))
    return Train(t, model, plan.learning_rates[t], extra)


def sample(clients: Sequence[int], plan: Plan, t: int) -> Sequence[int]:
    """A uniform random cohort in ascending order; the cost does not grow with idle clients."""
    if plan.cohort is None or plan.cohort >= len(clients):
        return clients
    rng = stream(plan.seed, Purpose.COHORT, t)
    chosen = rng.choice(len(clients), size=plan.cohort, replace=False, shuffle=False)
    return [clients[position] for position in sorted(chosen.tolist())]


def server_step(
    algorithm: Algorithm, mean: Aggregate, server_state: Tensors, num_clients: int
) -> tuple[Tensors, Tensors]:
    """The update of the parameters, and the new server state: the optimizer's own, if there is no correction."""
    if algorithm.correction is not None:
        return _corrected_step(algorithm.server, algorithm.correction, mean, server_state, num_clients)
    optimizer_state = {n: t for n, t in server_state.items() if n not in (MEDIAN_NORM, OUTLIER)}
    return algorithm.server.step(mean.delta, optimizer_state)


def _corrected_step(
    optimizer: ServerOptimizer, correction: Correction, mean: Aggregate, server_state: Tensors, num_clients: int
) -> tuple[Tensors, Tensors]:
    """The same with a drift correction; names in the state are prefixed by "optimizer" and "correction"."""
    update, optimizer_state = optimizer.step(mean.delta, strip_prefix("optimizer", server_state))
    update, correction_state = correction.server_step(
        update,
        mean.delta,
        mean.extra,
        strip_prefix("correction", server_state),
        participation=mean.num_averaged / num_clients,
    )
    return update, add_prefix("optimizer", optimizer_state) | add_prefix("correction", correction_state)
