"""What the server does with the mean delta: pure steps `(delta, state) → (update, state)`, on parameters only.

FedOpt (Reddi et al. 2020) treats the mean delta Δ as a pseudo-gradient that points downhill, so updates are added.
Running statistics never come here: an adaptive step could make a variance negative.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from spherefed.errors import ConfigError
from spherefed.tensors import Tensors, add_prefix, strip_prefix


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSgd:
    """v ← βv + Δ, update = lr · v: the convention of torch.optim.SGD, without a factor 1 − β.

    lr 1 and momentum 0 is plain averaging.
    """

    kind: ClassVar[str] = "sgd"
    lr: float = 1.0
    """Server learning rate."""
    momentum: float = 0.0
    """β of v ← βv + Δ."""

    def __post_init__(self) -> None:
        if not (self.lr > 0 and isfinite(self.lr)) or not 0 <= self.momentum < 1:
            raise ConfigError(
                f"algorithm.server: lr must be positive and momentum in [0, 1), got {self.lr} and {self.momentum}"
            )

    def step(self, delta: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        velocity = delta
        if self.momentum and state:
            velocity = {name: self.momentum * state[name] + d for name, d in delta.items()}
        update = velocity if self.lr == 1.0 else {name: self.lr * v for name, v in velocity.items()}
        return update, velocity if self.momentum else {}


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerAdam:
    """Reddi et al. 2020, Alg. 2 (FedAdam):  v ← β₂v + (1 − β₂)Δ²."""

    kind: ClassVar[str] = "adam"
    lr: float = 0.1
    """Server learning rate."""
    beta1: float = 0.9
    """m ← β₁m + (1 − β₁)Δ: the other momentum convention than server SGD's, as published."""
    beta2: float = 0.99
    """Decay of the second moment v."""
    tau: float = 1e-3
    """Degree of adaptivity: added to √v, and v starts at τ²."""

    def __post_init__(self) -> None:
        _check(self.lr, self.tau, self.beta1, self.beta2)

    def step(self, delta: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        def second_moment(v: Tensor, d: Tensor) -> Tensor:
            return self.beta2 * v + (1 - self.beta2) * d**2

        return _adaptive_step(delta, state, second_moment, lr=self.lr, beta1=self.beta1, tau=self.tau)


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerYogi:
    """Reddi et al. 2020, Alg. 2 (FedYogi):  v ← v − (1 − β₂)Δ² sign(v − Δ²)."""

    kind: ClassVar[str] = "yogi"
    lr: float = 0.1
    """Server learning rate."""
    beta1: float = 0.9
    """As in `adam`."""
    beta2: float = 0.99
    """Decay of the second moment v."""
    tau: float = 1e-3
    """As in `adam`."""

    def __post_init__(self) -> None:
        _check(self.lr, self.tau, self.beta1, self.beta2)

    def step(self, delta: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        def second_moment(v: Tensor, d: Tensor) -> Tensor:
            return v - (1 - self.beta2) * d**2 * torch.sign(v - d**2)

        return _adaptive_step(delta, state, second_moment, lr=self.lr, beta1=self.beta1, tau=self.tau)


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerAdagrad:
    """Reddi et al. 2020, Alg. 2 (FedAdagrad):  v ← v + Δ²; their experiments use β₁ = 0."""

    kind: ClassVar[str] = "adagrad"
    lr: float = 0.1
    """Server learning rate."""
    beta1: float = 0.0
    """As in `adam`."""
    tau: float = 1e-3
    """As in `adam`."""

    def __post_init__(self) -> None:
        _check(self.lr, self.tau, self.beta1)

    def step(self, delta: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        def second_moment(v: Tensor, d: Tensor) -> Tensor:
            return v + d**2

        return _adaptive_step(delta, state, second_moment, lr=self.lr, beta1=self.beta1, tau=self.tau)


class OwnServerOptimizer(Protocol):
    """A user's server optimizer: a frozen dataclass."""

    def step(self, delta: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        """The update, which is added to the parameters, and the new state; the state is empty before the first step."""
        ...


ServerOptimizer = ServerSgd | ServerAdam | ServerYogi | ServerAdagrad | OwnServerOptimizer


def _adaptive_step(
    delta: Tensors,
    state: Tensors,
    second_moment: Callable[[Tensor, Tensor], Tensor],
    *,
    lr: float,
    beta1: float,
    tau: float,
) -> tuple[Tensors, Tensors]:
    """m ← β₁m + (1 − β₁)Δ,  v ← rule(v, Δ),  update = lr · m / (√v + τ).

    m starts at 0 and v at τ²; no bias correction, as in Reddi et al. 2020, Alg. 2 (Adam's own paper has one).
    """
    before_m, before_v = strip_prefix("m", state), strip_prefix("v", state)
    m = {n: (1 - beta1) * d + (beta1 * before_m[n] if before_m else 0.0) for n, d in delta.items()}
    v = {n: second_moment(before_v[n] if before_v else torch.full_like(d, tau**2), d) for n, d in delta.items()}
    update = {n: lr * m[n] / (v[n].sqrt() + tau) for n in delta}
    return update, add_prefix("m", m) | add_prefix("v", v)


def _check(lr: float, tau: float, *betas: float) -> None:
    if not (lr > 0 and isfinite(lr) and tau > 0):
        raise ConfigError(f"algorithm.server: lr and tau must be positive and lr finite, got {lr} and {tau}")
    if not all(0 <= beta < 1 for beta in betas):
        raise ConfigError(f"algorithm.server: beta1 and beta2 must be in [0, 1), got {', '.join(map(str, betas))}")
