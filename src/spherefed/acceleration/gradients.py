"""Where training gets its gradient from: autograd or a closed form, chosen here; `StackedModel` does so for a group.

Every choice has the same interface. A `Gradients` owns the tensors that are trained and gives a function from a batch
to the loss and the gradient. The forward pass that autograd differentiates may be compiled or in bfloat16 (`passes`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from spherefed.acceleration.chain import CLOSED_FORM_LOSSES, Chain, chain_of, plain_forward
from spherefed.acceleration.passes import Pass, Precision, training_pass
from spherefed.losses import Loss
from spherefed.nn.classifier import Classifier
from spherefed.tensors import Tensors

TensorList = tuple[Tensor, ...] | list[Tensor]
ValueAndGrad = Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, TensorList]]
"""Inputs, labels, weights → the loss and its gradient for every trained tensor.

One model: inputs (n, …), labels (n,), weights None; the mean loss. A group of K clients: inputs (K, n, …), labels and
weights (K, n); Σ_n weight · loss of each client, (K,), and the gradient of their sum.
"""
Penalty = Callable[[Tensor, Tensor], Tensor]
"""Inputs and their features → a term that training minimises beside the loss."""


class Gradients(Protocol):
    """The trained tensors of one model, or of a group with clients as the first axis, and their gradient."""

    @property
    def params(self) -> Tensors: ...

    def value_and_grad(self, loss: Loss, trained: Tensors, penalty: Penalty | None) -> ValueAndGrad:
        """The gradient with respect to `trained`, which is `params` or a part of it."""
        ...


@dataclass(frozen=True, eq=False, slots=True)
class ModelGradients:
    """Gradients of one model: in closed form if it is a plain chain that is trained as a whole, else by autograd."""

    params: Mapping[str, Tensor]
    forward: Pass
    """Inputs → features and scores, for autograd."""
    chain: Chain | None

    def value_and_grad(self, loss: Loss, trained: Tensors, penalty: Penalty | None) -> ValueAndGrad:
        if self.chain is not None and trained is self.params and penalty is None and type(loss) in CLOSED_FORM_LOSSES:
            return partial(self.chain.value_and_grad, loss)
        return partial(_by_autograd, self.forward, loss, tuple(trained.values()), penalty)


def model_gradients(
    classifier: Classifier,
    params: Mapping[str, Tensor],
    *,
    compile_for: int | None = None,
    precision: Precision = "fp32",
) -> ModelGradients:
    """Choose how one model is differentiated; `compile_for` and `precision` as in `passes.training_pass`."""
    if compile_for is not None or precision != "fp32":
        forward = training_pass(classifier, compile_for=compile_for, precision=precision)
        return ModelGradients(params, forward, None)
    chain = chain_of(classifier)
    covers_all = chain is not None and [*map(id, chain.trained)] == [*map(id, params.values())]
    return ModelGradients(params, plain_forward(classifier), chain if covers_all else None)


def _by_autograd(
    forward: Pass,
    loss: Loss,
    trained: tuple[Tensor, ...],
    penalty: Penalty | None,
    inputs: Tensor,
    labels: Tensor,
    weights: Tensor | None,
) -> tuple[Tensor, TensorList]:
    assert weights is None, "one model averages over its batch"
    features, scores = forward(inputs)
    value = loss(scores, labels)
    total = value if penalty is None else value + penalty(inputs, features)
    return value.detach(), gradient_of(total, trained)


def gradient_of(value: Tensor, trained: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """∂value/∂trained; zero for tensors that the value does not depend on."""
    return torch.autograd.grad(value, trained, materialize_grads=True)
