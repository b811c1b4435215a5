"""Base algorithms as values, and `combine`, the one place where replies become an update.

An algorithm is a proximal strength, whether steps are normalised, a server optimiser, what is shared and what corrects
drift; FedAvg is all of them left alone. SphereFed is no algorithm: it is head, loss and calibration laid over any.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from spherefed.consistency import Consistency
from spherefed.corrections import Correction, DynamicRegularizer, ModelContrastive, Scaffold, Uncorrected
from spherefed.errors import ConfigError
from spherefed.messages import LEARNED_HEAD, ModelState, TrainReply
from spherefed.server_optimizers import ServerAdagrad, ServerAdam, ServerOptimizer, ServerSgd, ServerYogi
from spherefed.tensors import Tensors, WeightedSum, prefixed, under
from spherefed.workbench import Part

Weigh = Literal["examples", "clients"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Algorithm:
    """How clients are held back, how their work is weighed, and how the server moves."""

    prox_mu: float = 0.0
    """FedProx's μ: clients also minimise (μ/2)‖w − w_t‖²."""
    normalize_steps: bool = False
    """FedNova: divide each client's delta by its effective number of steps."""
    server: ServerOptimizer = field(default_factory=ServerSgd)
    weigh: Weigh = "examples"
    """By what replies are weighed: p_k = n_k / Σn, or 1 / |S|."""
    share: Part = "all"
    """The part of the model that is averaged; the rest stays with each client (LG-FedAvg: head, FedRep: encoder)."""
    correction: Correction = field(default_factory=Uncorrected)

    def __post_init__(self) -> None:
        if not self.prox_mu >= 0:
            raise ConfigError(f"algorithm.prox_mu must not be negative, got {self.prox_mu}")
        if self.share != "all" and not isinstance(self.correction, Uncorrected):
            raise ConfigError(f"algorithm.correction {self.correction.kind!r} needs share = 'all', got {self.share!r}")
        if isinstance(self.correction, DynamicRegularizer) and not self.prox_mu:
            raise ConfigError("algorithm.correction 'feddyn' needs its α as prox_mu above 0, got 0")

    @property
    def keeps_memory(self) -> bool:
        """Whether the algorithm makes clients remember anything from round to round."""
        return self.share != "all" or not isinstance(self.correction, Uncorrected)

    def broadcast(self, model: ModelState, memory: Tensors) -> Tensors:
        """What the server sends beside the model."""
        return self.correction.broadcast(model, under("carried", memory))

    def step(self, combined: "Combined", memory: Tensors, num_clients: int) -> tuple[Tensors, Tensors]:
        """The server's move: the update of the parameters, and what the server remembers."""
        delta, participation = combined.params, combined.num_counted / num_clients
        update, optimizer = self.server.step(delta, under("optimizer", memory))
        carried = under("carried", memory)
        update, carried_on = self.correction.carry(update, delta, combined.extra, carried, participation)
        return update, prefixed("optimizer", optimizer) | prefixed("carried", carried_on)


def fedavg() -> Algorithm:
    """McMahan et al. 2017: x⁺ = Σ p_k x_k."""
    return Algorithm()


def fedprox(mu: float) -> Algorithm:
    """Li et al. 2020: clients minimise f_k(w) + (μ/2)‖w − w_t‖²."""
    return Algorithm(prox_mu=mu)


def fednova(mu: float = 0.0) -> Algorithm:
    """Wang et al. 2020: deltas are divided by the effective number of local steps."""
    return Algorithm(normalize_steps=True, prox_mu=mu)


def fedavgm(momentum: float = 0.3, lr: float = 1.0) -> Algorithm:
    """FedOpt as the paper runs it: server SGD with momentum (torch's convention, see `ServerSgd`)."""
    return fedopt(ServerSgd(lr=lr, momentum=momentum))


def fedopt(server: ServerOptimizer) -> Algorithm:
    """Reddi et al. 2020: FedAvg whose combined delta goes through a server optimiser."""
    return Algorithm(server=server)


def fedadam(lr: float = 0.1, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3) -> Algorithm:
    return fedopt(ServerAdam(lr=lr, beta1=beta1, beta2=beta2, tau=tau))


def fedyogi(lr: float = 0.1, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3) -> Algorithm:
    return fedopt(ServerYogi(lr=lr, beta1=beta1, beta2=beta2, tau=tau))


def fedadagrad(lr: float = 0.1, beta1: float = 0.0, tau: float = 1e-3) -> Algorithm:
    return fedopt(ServerAdagrad(lr=lr, beta1=beta1, tau=tau))


def lg_fedavg() -> Algorithm:
    """Liang et al. 2020: the head is averaged, every client keeps its own encoder."""
    return Algorithm(share="head")


def fedrep() -> Algorithm:
    """Collins et al. 2021: the encoder is averaged, heads stay local; with `local.head_epochs` above 0."""
    return Algorithm(share="encoder")


def scaffold(lr: float = 1.0) -> Algorithm:
    """Karimireddy et al. 2020, option II, clients weighed alike as published."""
    return Algorithm(correction=Scaffold(), weigh="clients", server=ServerSgd(lr=lr))


def feddyn(alpha: float = 0.01) -> Algorithm:
    """Acar et al. 2021, clients weighed alike as published."""
    return Algorithm(correction=DynamicRegularizer(), weigh="clients", prox_mu=alpha)


def moon(mu: float = 1.0, temperature: float = 0.5) -> Algorithm:
    """Li et al. 2021."""
    return Algorithm(correction=ModelContrastive(mu=mu, temperature=temperature))


@dataclass(frozen=True, slots=True)
class Combined:
    """The weighted mean of what clients sent, and what is worth knowing about it."""

    params: Tensors
    buffers: Tensors
    extra: Tensors
    num_examples: int
    loss: float
    """Mean training loss over the examples of the cohort."""
    clients: tuple[int, ...]
    num_counted: int
    """Clients with at least one example."""
    consistency: dict[str, float] | None
    """SphereFed, Eq. 2 and 3, where heads are learned and shared."""


def combine(
    replies: Iterable[TrainReply], *, normalize_steps: bool, weigh: Weigh = "examples", head: Tensor | None = None
) -> Combined | None:
    """Weigh, by default by examples, p_k = n_k / Σn, and add up while streaming; None if nobody has an example.

    FedNova (Wang et al. 2020):  Δ = τ_eff · Σ p_k Δ_k / ‖a_k‖₁  with  τ_eff = Σ p_k ‖a_k‖₁;  FedAvg is the same with
    every ‖a_k‖₁ = 1. Only here are weights normalised. Buffers and extras are plainly averaged with p_k. Replies come
    in ascending client id, because float sums depend on their order. `head` is the round's, to compare theirs.
    """
    params, buffers, extra = WeightedSum(), WeightedSum(), WeightedSum()
    num_examples = num_counted = 0
    weight = steps = loss = 0.0
    clients: list[int] = []
    agreement = None if head is None else Consistency(head)
    for reply in replies:
        clients.append(reply.client)
        n = reply.num_examples
        if n == 0:
            continue
        w = n if weigh == "examples" else 1
        steps_k = reply.effective_steps if normalize_steps else 1.0
        params.add(reply.delta, w / steps_k)
        buffers.add(reply.buffers, w)
        extra.add(reply.extra, w)
        if agreement is not None:
            agreement.add(reply.delta[LEARNED_HEAD])
        num_examples += n
        num_counted += 1
        weight += w
        steps += w * steps_k
        loss += n * reply.loss
    if not num_examples:
        return None
    return Combined(
        params=params.times(steps / weight / weight),
        buffers=buffers.times(1 / weight),
        extra=extra.times(1 / weight),
        num_examples=num_examples,
        loss=loss / num_examples,
        clients=tuple(clients),
        num_counted=num_counted,
        consistency=None if agreement is None else agreement.summary(),
    )
