"""Accuracy on digits with 10 clients, 2 of them hostile, for each attack and aggregation rule.

python benchmarks/hostile_clients.py           prints the table
python benchmarks/hostile_clients.py --write   also writes it into docs/reliability.md, between its markers
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from sections import write_section

from spherefed.assembly import Assembly, assemble
from spherefed.client.evaluation import global_accuracy
from spherefed.client.training import LocalTraining
from spherefed.data.examples import Examples
from spherefed.data.partition import Dirichlet
from spherefed.engines.local import InProcess
from spherefed.errors import FederationError
from spherefed.experiment import Experiment
from spherefed.messages import Failure, Reply, Request, TrainReply
from spherefed.server.algorithms import Algorithm
from spherefed.server.federation import federate
from spherefed.server.reply_checks import Limits
from spherefed.server.robust import (
    Aggregation,
    CentredClipping,
    CoordinateMedian,
    Krum,
    Mean,
    MultiKrum,
    NormClipping,
    TrimmedMean,
)

HOSTILE = (3, 7)
NO_LIMITS = Limits(max_update_norm=1e300, max_norm_ratio=1e300, max_examples=2**62)
SEEDS = (0, 1, 2)

RULES: dict[str, tuple[Aggregation, Limits]] = {
    "mean, no limits": (Mean(), NO_LIMITS),
    "mean": (Mean(), Limits()),
    "median": (CoordinateMedian(), Limits()),
    "trimmed-mean": (TrimmedMean(trim=0.2), Limits()),
    "krum": (Krum(hostile=2), Limits()),
    "multi-krum": (MultiKrum(hostile=2), Limits()),
    "norm-clipping": (NormClipping(), Limits()),
    "centred-clipping": (CentredClipping(), Limits()),
}

Attack = Callable[[TrainReply], TrainReply]


def sign_flip(reply: TrainReply) -> TrainReply:
    return replace(reply, delta={name: -4 * tensor for name, tensor in reply.delta.items()})


def noise(reply: TrainReply) -> TrainReply:
    generator = torch.Generator().manual_seed(1000 * reply.round + reply.client)
    return replace(
        reply, delta={n: t + 1e6 * torch.randn(t.shape, generator=generator) for n, t in reply.delta.items()}
    )


def many_examples(reply: TrainReply) -> TrainReply:
    return replace(sign_flip(reply), num_examples=2**31 - 1)


ATTACKS: dict[str, Attack | None] = {
    "none": None,
    "sign flip (−4 Δ)": sign_flip,
    "noise of 10⁶": noise,
    "2³¹ − 1 examples (and −4 Δ)": many_examples,
    "label flip": lambda reply: reply,
}


class Attacked:
    """A fleet in which some clients are hostile; `flipped` answers for them if they train on other labels."""

    def __init__(self, fleet: InProcess, flipped: InProcess, attack: Attack | None) -> None:
        self.fleet, self.flipped, self.attack, self.clients = fleet, flipped, attack, fleet.clients

    def ask(self, clients: Sequence[int], request: Request) -> Iterator[Reply | Failure]:
        for client in clients:
            hostile = self.attack is not None and client in HOSTILE
            source = self.flipped if hostile and self.attack is ATTACKS["label flip"] else self.fleet
            for answer in source.ask([client], request):
                if self.attack is not None and hostile and isinstance(answer, TrainReply):
                    yield self.attack(answer)
                else:
                    yield answer


def accuracy(assembly: Assembly, attack: Attack | None, aggregation: Aggregation, limits: Limits) -> float:
    """In %, after the last round; 0 if no round can be finished."""
    weigh = "examples" if isinstance(aggregation, Mean) else "clients"
    plan = replace(
        assembly.plan(), algorithm=Algorithm(aggregation=aggregation, weigh=weigh), limits=limits, local=None
    )
    data = assembly.dataset
    labels = data.num_classes - 1 - data.train.labels
    other = replace(data, train=Examples(data.train.inputs, labels, data.train.prepare, data.train.indices))
    flipped = Assembly(assembly.experiment, other, assembly.partition, assembly.local_model)
    fleet = Attacked(InProcess(assembly.clients), InProcess(flipped.clients), attack)
    model = assembly.initial()
    try:
        for done in federate(fleet, model, plan):
            model = done.model
    except FederationError:
        return 0.0
    return 100 * (global_accuracy(assembly.local_model, model, data.test) or 0.0)


def table(seeds: Sequence[int]) -> str:
    """Mean accuracy over seeds, attacks by rules."""
    sums = {(attack, rule): 0.0 for attack in ATTACKS for rule in RULES}
    for seed in seeds:
        experiment = Experiment(
            name="hostile",
            rounds=20,
            seed=seed,
            local=LocalTraining(lr=0.1, epochs=2, batch_size=32),
            partition=Dirichlet(clients=10, alpha=1.0),
            stack=0,
        )
        for attack, change in ATTACKS.items():
            for rule, (aggregation, limits) in RULES.items():
                sums[attack, rule] += accuracy(assemble(experiment), change, aggregation, limits) / len(seeds)
    lines = [f"| attack of 2 in 10 clients | {' | '.join(RULES)} |", "|---" * (len(RULES) + 1) + "|"]
    for attack in ATTACKS:
        lines.append(f"| {attack} | {' | '.join(f'{sums[attack, rule]:.1f}' for rule in RULES)} |")
    return "\n".join(lines)


def main() -> None:
    text = table(SEEDS)
    print(text)
    if "--write" in sys.argv[1:]:
        write_section("reliability.md", "hostile clients", text)


if __name__ == "__main__":
    main()
