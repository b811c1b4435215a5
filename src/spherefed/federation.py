"""The round loop, written once against the small `Fleet` protocol; engines carry messages and know no algorithm.

The loop yields a record per round and takes no callbacks: progress, checkpoints and early stopping are the caller's
`for` body.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from spherefed.admission import Refusal, Tally, admit
from spherefed.algorithms import Algorithm, combine
from spherefed.messages import LEARNED_HEAD, Failure, ModelState, Reply, Request, Traffic, Train, TrainReply
from spherefed.rng import Purpose, stream
from spherefed.schedules import Schedule
from spherefed.tensors import Tensors


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

    rounds: int
    lr: float
    schedule: Schedule
    cohort: int | None
    """Clients per round; None: all of them."""
    algorithm: Algorithm
    seed: int
    quorum: float = 0.0
    """Fraction of the clients asked whose reply must count."""


@dataclass(frozen=True, slots=True)
class Round:
    """One finished round: the model it led to, what the server remembers, and what happened."""

    index: int
    lr: float
    model: ModelState
    memory: Tensors
    """The server optimiser's and the correction's own, empty for plain averaging."""
    num_examples: int
    loss: float
    clients: tuple[int, ...]
    refused: tuple[Refusal, ...]
    traffic: Traffic
    consistency: dict[str, float] | None = None
    """SphereFed, Eq. 2 and 3: how far the clients' learned heads agree; None if heads are fixed or not shared."""


def federate(
    fleet: Fleet, model: ModelState, plan: Plan, *, start: int = 0, memory: Tensors | None = None
) -> Iterator[Round]:
    """Rounds `start` to the last, each yielded when it is over.

    Going on from a yielded round's index + 1, model and memory gives the same rounds to the bit.
    """
    memory = memory or {}
    for t in range(start, plan.rounds):
        request = opening(plan, t, model, memory)
        chosen = sample(fleet.clients, plan.cohort, stream(plan.seed, Purpose.COHORT, t))
        tally = Tally()
        replies = admit(fleet.ask(chosen, request), TrainReply, request, chosen, tally)
        rule = plan.algorithm
        head = model.params.get(LEARNED_HEAD)
        combined = combine(replies, normalize_steps=rule.normalize_steps, weigh=rule.weigh, head=head)
        tally.check_answered(f"round {t}", plan.quorum)
        if combined is None:  # a cohort without a single example moves nothing
            yield Round(
                t, request.lr, model, memory, 0, 0.0, tuple(tally.admitted), tuple(tally.refused), tally.traffic
            )
            continue
        update, memory = rule.step(combined, memory, len(fleet.clients))
        model = model.moved(update, combined.buffers)
        yield Round(
            index=t,
            lr=request.lr,
            model=model,
            memory=memory,
            num_examples=combined.num_examples,
            loss=combined.loss,
            clients=combined.clients,
            refused=tuple(tally.refused),
            traffic=tally.traffic,
            consistency=combined.consistency,
        )


def opening(plan: Plan, t: int, model: ModelState, memory: Tensors) -> Train:
    """What the server asks of clients in round t, given the model and its own memory from before."""
    lr = plan.lr * plan.schedule.factor(t, plan.rounds)
    return Train(t, model, lr, plan.algorithm.broadcast(model, memory))


def sample(clients: Sequence[int], cohort: int | None, rng: np.random.Generator) -> Sequence[int]:
    """A uniform random cohort in ascending order; its cost does not grow with the clients that sit idle."""
    if cohort is None or cohort >= len(clients):
        return clients
    chosen = rng.choice(len(clients), size=cohort, replace=False, shuffle=False)
    return [clients[position] for position in sorted(chosen.tolist())]
