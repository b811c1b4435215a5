"""Base algorithms as values, and `combine`, the one place where replies become an update.

An algorithm is a proximal strength, whether steps are normalised, and a server optimiser; FedAvg is all of them left
alone. SphereFed is no algorithm: it is a head, a loss and a calibration laid over any of these.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from spherefed.errors import ConfigError
from spherefed.messages import TrainReply
from spherefed.server_optimizers import ServerAdagrad, ServerAdam, ServerOptimizer, ServerSgd, ServerYogi
from spherefed.tensors import Tensors


@dataclass(frozen=True, kw_only=True, slots=True)
class Algorithm:
    """How clients are held back, how their work is weighed, and how the server moves."""

    prox_mu: float = 0.0
    """FedProx's μ: clients also minimise (μ/2)‖w − w_t‖²."""
    normalize_steps: bool = False
    """FedNova: divide each client's delta by its effective number of steps."""
    server: ServerOptimizer = field(default_factory=ServerSgd)

    def __post_init__(self) -> None:
        if not self.prox_mu >= 0:
            raise ConfigError(f"algorithm.prox_mu must not be negative, got {self.prox_mu}")


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


@dataclass(frozen=True, slots=True)
class Combined:
    """The weighted mean of what clients sent, and what is worth knowing about it."""

    params: Tensors
    buffers: Tensors
    num_examples: int
    loss: float
    """Mean training loss over the examples of the cohort."""
    clients: tuple[int, ...]


def combine(replies: Iterable[TrainReply], *, normalize_steps: bool) -> Combined | None:
    """Weigh by examples, p_k = n_k / Σn, and add up while streaming; None if nobody has an example.

    FedNova (Wang et al. 2020):  Δ = τ_eff · Σ p_k Δ_k / ‖a_k‖₁  with  τ_eff = Σ p_k ‖a_k‖₁;  FedAvg is the same with
    every ‖a_k‖₁ = 1. Only here are weights normalised. Buffers are plainly averaged with p_k. Replies come in
    ascending client id, because float sums depend on their order.
    """
    names: list[str] = []
    sums: list[torch.Tensor] = []
    num_params = 0
    num_examples = 0
    steps = loss = 0.0
    clients: list[int] = []
    for reply in replies:
        clients.append(reply.client)
        n = reply.num_examples
        if n == 0:
            continue
        steps_k = reply.effective_steps if normalize_steps else 1.0
        delta, buffers = list(reply.delta.values()), list(reply.buffers.values())
        if not sums:
            names, num_params = [*reply.delta, *reply.buffers], len(delta)
            sums = [torch.zeros_like(t) for t in (*delta, *buffers)]
        torch._foreach_add_(sums[:num_params], delta, alpha=n / steps_k)
        if buffers:
            torch._foreach_add_(sums[num_params:], buffers, alpha=n)
        num_examples += n
        steps += n * steps_k
        loss += n * reply.loss
    if not num_examples:
        return None
    torch._foreach_mul_(sums[:num_params], steps / num_examples / num_examples)
    if sums[num_params:]:
        torch._foreach_mul_(sums[num_params:], 1 / num_examples)
    named = dict(zip(names, sums, strict=True))
    return Combined(
        params={name: named[name] for name in names[:num_params]},
        buffers={name: named[name] for name in names[num_params:]},
        num_examples=num_examples,
        loss=loss / num_examples,
        clients=tuple(clients),
    )
