"""Every method against identities and against references written as plain loops over torch.optim.SGD."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from spherefed.assembly import Assembly, assemble
from spherefed.client.client_state import InMemoryStates
from spherefed.client.local_model import LocalModel
from spherefed.client.training import LocalTraining, effective_steps
from spherefed.data.partition import Dirichlet, Iid
from spherefed.engines.local import InProcess
from spherefed.errors import ConfigError
from spherefed.experiment import Experiment, Model, experiment_from_mapping
from spherefed.messages import TrainReply
from spherefed.nn.classifier import Classifier
from spherefed.nn.encoders import Mlp
from spherefed.nn.heads import FixedRandom, Orthonormal
from spherefed.rng import Purpose, stream
from spherefed.schema import to_plain
from spherefed.server.algorithms import (
    Algorithm,
    fedadagrad,
    fedadam,
    fedavg,
    fedavgm,
    feddyn,
    fednova,
    fedprox,
    fedrep,
    fedyogi,
    lg_fedavg,
    moon,
    scaffold,
)
from spherefed.server.federation import Round, federate
from spherefed.server.optimizers import ServerAdam
from support.small import aggregate, in_double

ROUNDS = 3


TOLERANCE = 1e-10
"""On parameters of order 0.1 to 1 after three rounds in float64; sums are taken in another order by the references."""


def experiment(algorithm: Algorithm, **changes: Any) -> Experiment:
    values: dict[str, Any] = {
        "name": "x",
        "rounds": ROUNDS,
        "partition": Dirichlet(alpha=0.5, clients=4),
        "model": Model(encoder=Mlp(widths=(24, 16))),
        "local": LocalTraining(lr=0.05, epochs=2, batch_size=64),
        "algorithm": algorithm,
    }
    return Experiment(**(values | changes))


def rounds_of(assembly: Assembly, initial: Any = None) -> list[Round]:
    fleet = InProcess(assembly.clients)
    return list(federate(fleet, initial or assembly.initial(), assembly.plan()))


def final(algorithm: Algorithm, **changes: Any) -> dict[str, Tensor]:
    return dict(rounds_of(in_double(assemble(experiment(algorithm, **changes))))[-1].model.params)


def gap(left: Any, right: Any) -> float:
    assert left.keys() == right.keys()
    return max(float((left[n] - right[n]).abs().max()) for n in left)


def test_fedprox_approaches_fedavg_as_mu_vanishes() -> None:
    assert gap(final(fedprox(1e-12)), final(fedavg())) < TOLERANCE
    assert gap(final(fedprox(0.5)), final(fedavg())) > 1e-3


def test_server_momentum_approaches_averaging_as_it_vanishes() -> None:
    assert gap(final(fedavgm(momentum=1e-12)), final(fedavg())) < TOLERANCE
    assert gap(final(fedavgm(momentum=0.5)), final(fedavg())) > 1e-3


def test_fednova_equals_fedavg_when_clients_take_equal_steps() -> None:
    equal = {"partition": Iid(clients=4), "local": LocalTraining(lr=0.05, epochs=2, batch_size=400)}
    assert gap(final(fednova(), **equal), final(fedavg(), **equal)) < TOLERANCE
    assert gap(final(fednova()), final(fedavg())) > 1e-3


def coefficients(num_steps: int, momentum: float, shrink: float) -> np.ndarray:
    """a_k by brute force: how much the gradient of each step moves the final weights, one unit gradient at a time."""
    moved = []
    for step in range(num_steps):
        w = v = 0.0
        for now in range(num_steps):
            v = momentum * v + (1.0 if now == step else 0.0) + shrink * w
            w -= v
        moved.append(-w)
    return np.array(moved)


@pytest.mark.parametrize("num_steps", [1, 2, 17, 120])
@pytest.mark.parametrize(("momentum", "shrink"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.03), (0.0, 1.0), (0.9, 0.0026)])
def test_effective_steps_are_the_l1_norm_of_the_step_coefficients(
    num_steps: int, momentum: float, shrink: float
) -> None:
    a = coefficients(num_steps, momentum, shrink)
    assert (a >= -1e-12).all()
    assert effective_steps(num_steps, momentum=momentum, shrink=shrink) == pytest.approx(np.abs(a).sum(), rel=1e-10)


def test_effective_steps_have_the_closed_forms_of_wang_et_al() -> None:
    tau, rho, shrink = 40, 0.9, 0.01
    momentum = (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)
    assert effective_steps(tau, momentum=rho) == pytest.approx(momentum, rel=1e-12)
    proximal = (1 - (1 - shrink) ** tau) / shrink
    assert effective_steps(tau, momentum=0.0, shrink=shrink) == pytest.approx(proximal, rel=1e-12)
    assert effective_steps(tau, momentum=rho, shrink=1e-12) == pytest.approx(momentum, rel=1e-6)


def test_fednova_beyond_its_bound_is_refused() -> None:
    limit = (1 - 0.9**0.5) ** 2
    experiment(fednova(mu=0.99 * limit / 0.05))
    with pytest.raises(ConfigError, match=r"lower local\.lr"):
        experiment(fednova(mu=1.01 * limit / 0.05))
    assert min(coefficients(400, 0.9, 4 * limit)) < 0  # what the bound is for
    experiment(fedprox(mu=1.01 * limit / 0.05))  # FedProx alone needs no bound


Clients = list[tuple[Tensor, Tensor]]


class Reference:
    """The same federation, written out: whole models, deep copies, torch's own optimiser."""

    def __init__(self, of: Experiment) -> None:
        assembly = in_double(assemble(of))
        self.e, self.local = of, of.local
        self.model = copy.deepcopy(assembly.local_model.classifier)
        examples = [assembly.clients[k].examples for k in range(of.partition.clients)]
        self.data: Clients = [(e.inputs[e.indices], e.labels[e.indices]) for e in examples]
        self.sizes = np.array([len(y) for _, y in self.data])
        self.ours = rounds_of(assembly)

    def lr(self, t: int) -> float:
        return self.local.lr * 0.5 * (1 + np.cos(np.pi * t / self.e.rounds))

    def fit(
        self,
        model: nn.Module,
        t: int,
        k: int,
        *,
        phases: list[tuple[list[nn.Parameter], int]] | None = None,
        term: Callable[[nn.Module], Any] = lambda model: 0.0,
        batch_term: Callable[[nn.Module, Tensor], Any] = lambda model, x: 0.0,
    ) -> int:
        order, (x, y), steps = stream(self.e.seed, Purpose.BATCHES, t, k), self.data[k], 0
        for params, epochs in phases or [(list(model.parameters()), self.local.epochs)]:
            optimizer = torch.optim.SGD(
                params, lr=self.lr(t), momentum=self.local.momentum, weight_decay=self.local.weight_decay
            )
            for _ in range(epochs):
                shuffled = torch.from_numpy(order.permutation(len(y)))
                for batch in shuffled.split(self.local.batch_size):
                    model.zero_grad()
                    loss = functional.cross_entropy(model(x[batch]), y[batch])
                    (loss + term(model) + batch_term(model, x[batch])).backward()
                    optimizer.step()
                    steps += 1
        return steps

    def agrees(self, model: nn.Module, t: int) -> None:
        ours = self.ours[t].model.params
        theirs = {n: p.detach() for n, p in model.named_parameters() if n in ours}
        assert gap(ours, theirs) < TOLERANCE


def set_flat(model: nn.Module, flat: Tensor) -> None:
    with torch.no_grad():
        nn.utils.vector_to_parameters(flat, model.parameters())


def flat_of(model: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def inner(model: nn.Module, flat: Tensor) -> Tensor:
    return nn.utils.parameters_to_vector(model.parameters()) @ flat


def proximal(mu: float, anchor: Tensor) -> Callable[[nn.Module], Tensor]:
    """(μ/2)‖w − anchor‖²."""
    return lambda model: mu / 2 * (nn.utils.parameters_to_vector(model.parameters()) - anchor).square().sum()


@pytest.mark.parametrize("algorithm", [fedavg(), fedprox(0.0), fedprox(0.5), fedavgm(0.0, 1.0)], ids=str)
def test_fedavg_and_fedprox_agree_with_plain_loops(algorithm: Algorithm) -> None:
    r = Reference(experiment(algorithm))
    for t in range(ROUNDS):
        x, mean = flat_of(r.model), torch.zeros_like(flat_of(r.model))
        for k, size in enumerate(r.sizes):
            local = copy.deepcopy(r.model)
            r.fit(local, t, k, term=proximal(algorithm.prox_mu, x))
            mean += size / r.sizes.sum() * flat_of(local)
        set_flat(r.model, mean)
        r.agrees(r.model, t)


def test_fedavgm_agrees_with_plain_loops() -> None:
    """The server runs torch's own SGD on the gradient  −Δ."""
    r = Reference(experiment(fedavgm(momentum=0.6, lr=0.7)))
    server = torch.optim.SGD(r.model.parameters(), lr=0.7, momentum=0.6)
    for t in range(ROUNDS):
        server.zero_grad()
        for k, size in enumerate(r.sizes):
            local = copy.deepcopy(r.model)
            r.fit(local, t, k)
            for mine, trained in zip(r.model.parameters(), local.parameters(), strict=True):
                gradient = size / r.sizes.sum() * (mine - trained).detach()
                mine.grad = gradient if mine.grad is None else mine.grad + gradient
        server.step()
        r.agrees(r.model, t)


@pytest.mark.parametrize("mu", [0.0, 0.04])
def test_fednova_agrees_with_plain_loops(mu: float) -> None:
    r = Reference(experiment(fednova(mu)))
    p = r.sizes / r.sizes.sum()
    for t in range(ROUNDS):
        x, moved, norms = flat_of(r.model), [], []
        for k in range(len(p)):
            local = copy.deepcopy(r.model)
            steps = r.fit(local, t, k, term=proximal(mu, x))
            moved.append(x - flat_of(local))
            norms.append(coefficients(steps, 0.9, mu * r.lr(t)).sum())
        tau_eff = float((p * norms).sum())
        set_flat(r.model, x - tau_eff * sum(pk * d / a for pk, d, a in zip(p, moved, norms, strict=True)))
        r.agrees(r.model, t)


def test_fedadam_agrees_with_plain_loops() -> None:
    r = Reference(experiment(fedadam(lr=0.02, beta1=0.8, beta2=0.9, tau=1e-2)))
    m, v = torch.zeros_like(flat_of(r.model)), torch.full_like(flat_of(r.model), 1e-4)
    for t in range(ROUNDS):
        x, delta = flat_of(r.model), torch.zeros_like(m)
        for k, size in enumerate(r.sizes):
            local = copy.deepcopy(r.model)
            r.fit(local, t, k)
            delta += size / r.sizes.sum() * (flat_of(local) - x)
        m = 0.8 * m + 0.2 * delta
        v = 0.9 * v + 0.1 * delta * delta
        set_flat(r.model, x + 0.02 * m / (torch.sqrt(v) + 1e-2))
        r.agrees(r.model, t)


def test_fedrep_agrees_with_plain_loops() -> None:
    local = LocalTraining(lr=0.05, epochs=1, head_epochs=2, batch_size=64)
    r = Reference(experiment(fedrep(), local=local))
    heads = [r.model.head.weight.detach().clone() for _ in r.sizes]
    for t in range(ROUNDS):
        average = {n: torch.zeros_like(p) for n, p in r.model.encoder.named_parameters()}
        for k, size in enumerate(r.sizes):
            mine = copy.deepcopy(r.model)
            with torch.no_grad():
                mine.head.weight.copy_(heads[k])
            r.fit(mine, t, k, phases=[([mine.head.weight], 2), (list(mine.encoder.parameters()), 1)])
            heads[k] = mine.head.weight.detach().clone()
            for n, p in mine.encoder.named_parameters():
                average[n] += size / r.sizes.sum() * p.detach()
        r.model.encoder.load_state_dict(average)
        r.agrees(r.model, t)


@pytest.mark.parametrize("cohort", [None, 3])
def test_scaffold_agrees_with_plain_loops(cohort: int | None) -> None:
    local = LocalTraining(lr=0.05, epochs=2, batch_size=64, momentum=0.0, weight_decay=0.0)
    r = Reference(experiment(scaffold(), local=local, cohort=cohort))
    num = len(r.sizes)
    c, c_k = torch.zeros_like(flat_of(r.model)), [torch.zeros_like(flat_of(r.model)) for _ in range(num)]
    for t in range(ROUNDS):
        x, new_x, new_c = flat_of(r.model), torch.zeros_like(c), c.clone()
        chosen = r.ours[t].clients
        assert len(chosen) == (cohort or num)
        for k in chosen:
            local_model = copy.deepcopy(r.model)
            steps = r.fit(local_model, t, k, term=lambda m, g=c - c_k[k]: inner(m, g))
            y = flat_of(local_model)
            plus = c_k[k] - c + (x - y) / (steps * r.lr(t))  # option II
            new_x += y / len(chosen)
            new_c += (plus - c_k[k]) / num
            c_k[k] = plus
        c = new_c
        set_flat(r.model, new_x)
        r.agrees(r.model, t)


@pytest.mark.parametrize("cohort", [None, 3])
def test_feddyn_agrees_with_plain_loops(cohort: int | None) -> None:
    alpha = 0.1
    r = Reference(experiment(feddyn(alpha), cohort=cohort))
    num = len(r.sizes)
    h, g_k = torch.zeros_like(flat_of(r.model)), [torch.zeros_like(flat_of(r.model)) for _ in range(num)]
    for t in range(ROUNDS):
        x, mean, drift = flat_of(r.model), torch.zeros_like(h), torch.zeros_like(h)
        chosen = r.ours[t].clients
        for k in chosen:
            local_model = copy.deepcopy(r.model)

            def term(m: nn.Module, x: Tensor = x, g: Tensor = g_k[k]) -> Tensor:
                w = nn.utils.parameters_to_vector(m.parameters())
                return -(w @ g) + alpha / 2 * (w - x).square().sum()

            r.fit(local_model, t, k, term=term)
            w = flat_of(local_model)
            g_k[k] = g_k[k] - alpha * (w - x)
            mean += w / len(chosen)
            drift += w - x
        h = h - alpha * drift / num
        set_flat(r.model, mean - h / alpha)
        r.agrees(r.model, t)


def test_moon_agrees_with_plain_loops() -> None:
    mu, temperature = 2.0, 0.5
    r = Reference(experiment(moon(mu, temperature)))
    previous: list[nn.Module | None] = [None] * len(r.sizes)
    for t in range(ROUNDS):
        start, mean = copy.deepcopy(r.model), torch.zeros_like(flat_of(r.model))
        for k, size in enumerate(r.sizes):
            mine, last = copy.deepcopy(r.model), previous[k]

            def contrast(m: nn.Module, x: Tensor, start: nn.Module = start, last: nn.Module | None = last) -> Any:
                if last is None:
                    return 0.0
                z = functional.normalize(m.encoder(x), dim=1)
                features = [functional.normalize(other.encoder(x).detach(), dim=1) for other in (start, last)]
                a, b = ((z * f).sum(dim=1).div(temperature).exp() for f in features)
                return -mu * (a / (a + b)).log().mean()

            r.fit(mine, t, k, batch_term=contrast)
            previous[k] = mine
            mean += size / r.sizes.sum() * flat_of(mine)
        set_flat(r.model, mean)
        r.agrees(r.model, t)


def test_moon_with_mu_0_is_fedavg() -> None:
    assert gap(final(moon(mu=0.0)), final(fedavg())) == 0.0


def bytes_per_round(algorithm: Algorithm, **changes: Any) -> tuple[int, int]:
    done = rounds_of(assemble(experiment(algorithm, **changes)))[-1]
    (down,), (up,) = set(done.traffic.down.values()), set(done.traffic.up.values())
    return down, up


ENCODER = 4 * (64 * 24 + 24 + 24 * 16 + 16)


HEAD = 4 * (10 * 16)


SCALARS = (2 * 8, 5 * 8)
"""round and lr; client, round, examples, steps, loss."""


@pytest.mark.parametrize(
    ("algorithm", "down", "up"),
    [
        (fedavg(), ENCODER + HEAD, ENCODER + HEAD),
        (lg_fedavg(), HEAD, HEAD),
        (fedrep(), ENCODER, ENCODER),
        (scaffold(), 2 * (ENCODER + HEAD), 2 * (ENCODER + HEAD)),
        (feddyn(), ENCODER + HEAD, ENCODER + HEAD),
        (moon(), ENCODER + HEAD, ENCODER + HEAD),
    ],
    ids=["fedavg", "lg-fedavg", "fedrep", "scaffold", "feddyn", "moon"],
)
def test_only_what_a_method_shares_travels(algorithm: Algorithm, down: int, up: int) -> None:
    assert bytes_per_round(algorithm) == (down + SCALARS[0], up + SCALARS[1])


@pytest.mark.parametrize("head", [FixedRandom(), Orthonormal()])
def test_fixed_heads_do_not_travel_in_any_round(head: Any) -> None:
    assembly = assemble(experiment(fedavg(), model=Model(encoder=Mlp(widths=(24, 16)), head=head)))
    for done in rounds_of(assembly):
        assert set(done.traffic.down.values()) == {ENCODER + SCALARS[0]}
        assert set(done.traffic.up.values()) == {ENCODER + SCALARS[1]}
        assert "head.weight" not in done.model.params
        assert done.consistency is None


@pytest.mark.parametrize("algorithm", [*(a() for a in (fedavg, fednova, fedadam, fedrep, lg_fedavg, scaffold, moon))])
def test_running_statistics_follow_their_part_and_variances_stay_positive(algorithm: Algorithm) -> None:
    e = experiment(replace(algorithm, server=ServerAdam(lr=1.0)), partition=Iid(clients=3), rounds=2)
    plain = assemble(e)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU())
    head = e.model.head.build(10, 16, 0)
    local_model = LocalModel(Classifier(encoder, head, num_classes=10, normalize=False), algorithm.share)
    store = InMemoryStates()
    assembly = Assembly(e, plain.dataset, plain.partition, local_model)
    initial = assembly.initial()
    variance = "encoder.2.running_var"
    for done in federate(InProcess(assembly.clients, store), initial, assembly.plan()):
        remembered = store.load(0, before=done.index + 1) or {}
        found = done.model.buffers[variance] if algorithm.share != "head" else remembered[f"private.{variance}"]
        assert (found > 0).all()
        assert not torch.equal(found, torch.ones(16))
        assert (variance in done.model.buffers) == (algorithm.share != "head")
        assert (f"private.{variance}" in remembered) == (algorithm.share == "head")


ALL = [
    fedavg(),
    fedprox(0.1),
    fednova(),
    fedavgm(),
    fedadam(),
    fedyogi(),
    fedadagrad(),
    lg_fedavg(),
    fedrep(),
    scaffold(),
    feddyn(),
    moon(),
]


@pytest.mark.parametrize("algorithm", ALL, ids=str)
def test_algorithms_survive_plain_data(algorithm: Algorithm) -> None:
    e = experiment(algorithm)
    assert experiment_from_mapping(to_plain(e)) == e


@pytest.mark.parametrize(
    "make",
    [
        lambda: Algorithm(prox_mu=-1.0),
        lambda: replace(scaffold(), share="head"),
        lambda: feddyn(0.0),
        lambda: moon(temperature=0.0),
        lambda: experiment(lg_fedavg(), model=Model(head=Orthonormal())),
        lambda: experiment(fedavg(), model=Model(head=Orthonormal()), local=LocalTraining(lr=0.1, head_epochs=1)),
    ],
)
def test_what_cannot_be_meant_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(ConfigError):
        make()


@pytest.mark.parametrize("algorithm", ALL, ids=str)
def test_a_cohort_without_an_example_moves_nothing(algorithm: Algorithm) -> None:
    empty = TrainReply(0, 0, 0, 0.0, 0.0, {"w": torch.ones(2)}, {})
    assert aggregate(iter([empty]), normalize_steps=algorithm.normalize_steps, weigh=algorithm.weigh) is None
