"""Closed-form gradients of plain chains of layers: no module calls, no autograd graph. For one
model the bits are autograd's, except for the normalisation; for a group they are the same up to rounding.

For small networks, module calls and the graph take two thirds of a training step. Only layers whose arithmetic is one
known function are used; a network with any other layer, or with a hook, is left to autograd.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from spherefed.losses import CrossEntropy, Loss, MeanSquaredError, one_hot
from spherefed.nn.classifier import Classifier
from spherefed.tensors import unit_gradient

_aten = torch.ops.aten
_EACH, _MEAN, _IGNORED = 0, 1, -100
"""torch's codes: no reduction over examples, mean over examples, and the label that its cross-entropy ignores."""


CLOSED_FORM_LOSSES = (CrossEntropy, MeanSquaredError)
"""Losses whose gradient `Chain` knows; any other is left to autograd."""


@dataclass(frozen=True, eq=False, slots=True)
class Layer:
    """y = forward(x), and the gradients that follow from g = ∂loss/∂y."""

    forward: Callable[[Tensor], Tensor]
    input_gradient: Callable[[Tensor, Tensor, Tensor], Tensor]
    """g, x, y → ∂loss/∂x."""
    trained: tuple[Tensor, ...] = ()
    parameter_gradients: Callable[[Tensor, Tensor], list[Tensor]] = lambda g, x: []
    """g, x → ∂loss/∂(each trained parameter)."""


@dataclass(frozen=True, eq=False, slots=True)
class Chain:
    """A classifier of plain layers with its gradient in closed form, of one model or of a group."""

    layers: tuple[Layer, ...]
    trained: tuple[Tensor, ...]
    """All trained parameters, in the order of layers."""

    def value_and_grad(
        self, loss: Loss, inputs: Tensor, labels: Tensor, weights: Tensor | None
    ) -> tuple[Tensor, list[Tensor]]:
        """The loss and its gradient for every trained parameter.

        One model: inputs (n, …), labels (n,), no weights; the mean loss. A group: inputs (K, n, …), labels and weights
        (K, n); Σ_n weight · loss of each client, (K,), and the gradient of their sum.
        """
        layers, outputs = self.layers, [inputs]
        for layer in layers:
            outputs.append(layer.forward(outputs[-1]))
        value, g = _score_gradient(loss, outputs[-1], labels, weights)
        gradients: list[Tensor] = []
        for index in range(len(layers) - 1, -1, -1):
            layer, x = layers[index], outputs[index]
            if layer.trained:
                gradients[:0] = layer.parameter_gradients(g, x)
                if len(gradients) == len(self.trained):  # no earlier layer is trained
                    break
            g = layer.input_gradient(g, x, outputs[index + 1])
        return value, gradients


def grouped_value_and_grad(
    chains: Sequence[Chain], loss: Loss, inputs: Tensor, labels: Tensor, weights: Tensor | None
) -> tuple[Tensor, list[Tensor]]:
    """For as many clients as the batch has: `chains[K - 1]` is the chain of the first K clients."""
    return chains[len(labels) - 1].value_and_grad(loss, inputs, labels, weights)


def _score_gradient(loss: Loss, scores: Tensor, labels: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """The loss and ∂loss/∂scores, of one model or of a group as in `Chain.value_and_grad`."""
    by_examples = _cross_entropy if isinstance(loss, CrossEntropy) else _mean_squares
    if weights is None:
        return by_examples(loss, scores, labels, None)
    each, g = by_examples(loss, scores.flatten(0, 1), labels.flatten(), weights.flatten())
    return (each.view_as(labels) * weights).sum(dim=1), g.view_as(scores)


def _cross_entropy(loss: Loss, scores: Tensor, labels: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """The loss, and  ∂/∂scores = τ/n · (softmax(τ · scores) − one_hot(y)),  by the functions that autograd calls.

    With `weights`, (n,) instead of 1/n: each example's loss, (n,), and the gradient of their weighted sum.
    """
    assert isinstance(loss, CrossEntropy)
    reduction, scale = _MEAN if weights is None else _EACH, loss.scale
    log_p = functional.log_softmax(scores if scale == 1.0 else scores * scale, dim=1)
    value, total_weight = _aten.nll_loss_forward.default(log_p, labels, None, reduction, _IGNORED)
    start = unit_gradient(value.dtype, value.device) if weights is None else weights
    g = _aten.nll_loss_backward.default(start, log_p, labels, None, reduction, _IGNORED, total_weight)
    g = _aten._log_softmax_backward_data.default(g, log_p, 1, log_p.dtype)
    return value, g if scale == 1.0 else g * scale


def _mean_squares(loss: Loss, scores: Tensor, labels: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """The loss, and  ∂/∂scores = 2/(nC) · (scores − one_hot(y));  `weights` as for cross-entropy."""
    targets = one_hot(scores, labels)
    if weights is None:
        value = functional.mse_loss(scores, targets)
        return value, _aten.mse_loss_backward.default(unit_gradient(value.dtype, value.device), scores, targets, _MEAN)
    difference = scores - targets
    return difference.square().mean(dim=1), difference * (2 / scores.shape[1] * weights)[:, None]


ParameterView = Callable[[Tensor], Tensor]
"""The values that a layer computes with: the parameter itself, detached, or one copy per client of a group."""


def chain_of(classifier: Classifier, view: ParameterView = Tensor.detach, *, stacked: bool = False) -> Chain | None:
    """The classifier as a chain, or None if it has a layer or a hook that only a module call handles.

    With `stacked`, clients are the first axis of inputs, of scores and of what `view` gives for trained parameters.
    """
    layers = _all_layers(classifier, view, stacked)
    if layers is None:
        return None
    trained = tuple(parameter for layer in layers for parameter in layer.trained)
    if len(set(map(id, trained))) < len(trained) or any(parameter._backward_hooks for parameter in trained):
        return None  # a parameter used twice, or a hook on its gradient
    return Chain(tuple(layers), trained)


def plain_forward(classifier: Classifier) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Inputs → features and scores, for autograd to differentiate; without module calls if it is a chain."""
    layers = _all_layers(classifier, lambda parameter: parameter, stacked=False)
    return partial(_module_forward, classifier) if layers is None else partial(_chain_forward, layers[:-1], layers[-1])


def _module_forward(classifier: Classifier, inputs: Tensor) -> tuple[Tensor, Tensor]:
    features = classifier.features(inputs)
    return features, classifier.head(features)


def _chain_forward(encoder: list[Layer], head: Layer, inputs: Tensor) -> tuple[Tensor, Tensor]:
    for layer in encoder:
        inputs = layer.forward(inputs)
    return inputs, head.forward(inputs)


def _all_layers(classifier: Classifier, view: ParameterView, stacked: bool) -> list[Layer] | None:
    encoder = None if _hooked(classifier) or _hooked(classifier.head) else _layers(classifier.encoder, view, stacked)
    if encoder is None:
        return None
    return [*encoder, *([_normalize()] if classifier.normalize else []), _linear(classifier.head.weight, None, view)]


def _layers(module: nn.Module, view: ParameterView, stacked: bool) -> list[Layer] | None:
    if _hooked(module):
        return None
    if type(module) is nn.Sequential:
        # Not `children()`, which lists a layer that is used twice once.
        parts = [_layers(child, view, stacked) for child in module]
        return None if None in parts else [layer for part in parts for layer in part or ()]
    layer = _layer(module, view, stacked)
    return None if layer is None else [layer]


def _hooked(module: nn.Module) -> bool:
    return any((module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks))


def _layer(layer: nn.Module, view: ParameterView, stacked: bool) -> Layer | None:
    match layer:  # the exact type, because a subclass may compute something else
        case nn.Linear() if type(layer) is nn.Linear:
            return _linear(layer.weight, layer.bias, view)
        case nn.ReLU() if type(layer) is nn.ReLU and not layer.inplace:
            return _relu()
        case nn.Flatten() if type(layer) is nn.Flatten:
            start, end = ((dim + 1 if stacked and dim >= 0 else dim) for dim in (layer.start_dim, layer.end_dim))
            return _flatten(start, end)
    return None


def _linear(weight: Tensor, bias: Tensor | None, view: ParameterView) -> Layer:
    """y = xWᵀ + b:  ∂W = gᵀx,  ∂b = Σ g,  ∂x = gW."""
    trains_weight, trains_bias = weight.requires_grad, bias is not None and bias.requires_grad
    trained = tuple(p for p in (weight, bias) if p is not None and p.requires_grad)
    w, b = view(weight), None if bias is None else view(bias)
    if w.ndim == 3:
        return _linear_per_client(w, b, trained)

    def parameter_gradients(g: Tensor, x: Tensor) -> list[Tensor]:
        if g.ndim > 2:
            g, x = g.flatten(0, -2), x.flatten(0, -2)
        gradients = [g.t().mm(x)] if trains_weight else []
        if trains_bias:
            gradients.append(g.sum(0))
        return gradients

    return Layer(lambda x: functional.linear(x, w, b), lambda g, x, y: g @ w, trained, parameter_gradients)


def _linear_per_client(w: Tensor, b: Tensor | None, trained: tuple[Tensor, ...]) -> Layer:
    """The same for several clients, (K, …, i) → (K, …, o), each with its own W and b, all of them trained."""

    def forward(x: Tensor) -> Tensor:
        rows = _rows(x)
        y = torch.bmm(rows, w.mT) if b is None else torch.baddbmm(b[:, None], rows, w.mT)
        return y if x.ndim == 3 else y.view(*x.shape[:-1], -1)

    def parameter_gradients(g: Tensor, x: Tensor) -> list[Tensor]:
        g, x = _rows(g), _rows(x)
        return [g.mT.bmm(x)] if b is None else [g.mT.bmm(x), g.sum(1)]

    def input_gradient(g: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return g.bmm(w) if x.ndim == 3 else _rows(g).bmm(w).view_as(x)

    return Layer(forward, input_gradient, trained, parameter_gradients)


def _rows(x: Tensor) -> Tensor:
    """(K, …, i) → (K, n, i)."""
    return x if x.ndim == 3 else x.flatten(1, -2)


def _relu() -> Layer:
    """y = max(x, 0):  ∂x = g where y > 0."""
    return Layer(torch.relu, lambda g, x, y: torch.ops.aten.threshold_backward.default(g, y, 0))


def _flatten(start_dim: int, end_dim: int) -> Layer:
    return Layer(partial(torch.flatten, start_dim=start_dim, end_dim=end_dim), lambda g, x, y: g.reshape(x.shape))


def _normalize(eps: float = 1e-12) -> Layer:
    """z = h/‖h‖:  ∂h = (g − z(z·g)) / ‖h‖; torch divides by ε where ‖h‖ is less, and so does this."""

    def input_gradient(g: Tensor, x: Tensor, y: Tensor) -> Tensor:
        norm_n1 = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        along_n1 = (y * g).sum(dim=-1, keepdim=True).mul_(norm_n1 >= eps)
        return torch.addcmul(g, y, along_n1, value=-1).div_(norm_n1.clamp_min_(eps))

    return Layer(partial(functional.normalize, dim=-1, eps=eps), input_gradient)
