"""A chain of plain layers as the products they are: forward without `Module.__call__`, backward without a graph.

For small networks calls and graph are two thirds of a step. Only layers whose arithmetic is one known function are
taken apart; a network with any other layer, or with a hook, is called as the module it is and left to autograd.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from spherefed.nn.classifier import Classifier

Slope = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Scores and labels → a loss and ∂loss/∂scores."""


@dataclass(frozen=True, eq=False, slots=True)
class Layer:
    """y = forward(x), and what becomes of g = ∂loss/∂y."""

    forward: Callable[[Tensor], Tensor]
    to_inputs: Callable[[Tensor, Tensor, Tensor], Tensor]
    """g, x, y → ∂loss/∂x."""
    trained: tuple[Tensor, ...] = ()
    to_trained: Callable[[Tensor, Tensor], list[Tensor]] = lambda g, x: []
    """g, x → ∂loss/∂(each that is trained)."""


@dataclass(frozen=True, eq=False, slots=True)
class Chain:
    """A classifier of plain layers that differentiates itself, to the bit as autograd does (normalisation apart)."""

    layers: tuple[Layer, ...]
    trained: tuple[Tensor, ...]
    """All that is trained, in the order of layers."""

    def gradient(self, inputs: Tensor, labels: Tensor, slope: Slope) -> tuple[Tensor, list[Tensor]]:
        """The loss, and its gradient by everything that is trained."""
        layers, passed = self.layers, [inputs]
        for layer in layers:
            passed.append(layer.forward(passed[-1]))
        value, g = slope(passed[-1], labels)
        found: list[Tensor] = []
        for place in range(len(layers) - 1, -1, -1):
            layer, x = layers[place], passed[place]
            if layer.trained:
                found[:0] = layer.to_trained(g, x)
                if len(found) == len(self.trained):  # nothing is trained before it
                    break
            g = layer.to_inputs(g, x, passed[place + 1])
        return value, found


See = Callable[[Tensor], Tensor]
"""How layers look at their parameters: as they are, as plain values, or as those of several clients side by side."""


def chain_of(classifier: Classifier, see: See = Tensor.detach, *, stacked: bool = False) -> Chain | None:
    """None: there is a layer, or a hook, that only a call does justice to.

    `see` gives the values that the chain computes with: the classifier's own, but no history for autograd. Where
    clients are `stacked`, they are the first axis of what it gives for trained parameters, of inputs and of scores.
    """
    layers = _taken_apart(classifier, see, stacked)
    if layers is None:
        return None
    trained = tuple(parameter for layer in layers for parameter in layer.trained)
    if len(set(map(id, trained))) < len(trained) or any(parameter._backward_hooks for parameter in trained):
        return None  # one parameter in two places, or somebody who wants to see its gradient
    return Chain(tuple(layers), trained)


def straight(classifier: Classifier) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Inputs → features and scores, as the classifier has them, for autograd to differentiate."""
    layers = _taken_apart(classifier, lambda parameter: parameter, stacked=False)
    return partial(_called, classifier) if layers is None else partial(_through, layers[:-1], layers[-1])


def _called(classifier: Classifier, inputs: Tensor) -> tuple[Tensor, Tensor]:
    features = classifier.features(inputs)
    return features, classifier.head(features)


def _through(encoder: list[Layer], head: Layer, inputs: Tensor) -> tuple[Tensor, Tensor]:
    for layer in encoder:
        inputs = layer.forward(inputs)
    return inputs, head.forward(inputs)


def _taken_apart(classifier: Classifier, see: See, stacked: bool) -> list[Layer] | None:
    encoder = None if _hooked(classifier) or _hooked(classifier.head) else _layers(classifier.encoder, see, stacked)
    if encoder is None:
        return None
    return [*encoder, *([_normalize()] if classifier.normalize else []), _linear(classifier.head.weight, None, see)]


def _layers(module: nn.Module, see: See, stacked: bool) -> list[Layer] | None:
    if _hooked(module):
        return None
    if type(module) is nn.Sequential:
        # Not `children()`: a layer in two places is there once.
        parts = [_layers(child, see, stacked) for child in module]
        return None if None in parts else [layer for part in parts for layer in part or ()]
    layer = _layer(module, see, stacked)
    return None if layer is None else [layer]


def _hooked(module: nn.Module) -> bool:
    return any((module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks))


def _layer(layer: nn.Module, see: See, stacked: bool) -> Layer | None:
    match layer:  # types are compared too, because subclasses may do anything
        case nn.Linear() if type(layer) is nn.Linear:
            return _linear(layer.weight, layer.bias, see)
        case nn.ReLU() if type(layer) is nn.ReLU and not layer.inplace:
            return _relu()
        case nn.Flatten() if type(layer) is nn.Flatten:
            start, end = ((dim + 1 if stacked and dim >= 0 else dim) for dim in (layer.start_dim, layer.end_dim))
            return _flatten(start, end)
    return None


def _linear(weight: Tensor, bias: Tensor | None, see: See) -> Layer:
    """y = xWᵀ + b:  ∂W = gᵀx,  ∂b = Σ g,  ∂x = gW."""
    trains_weight, trains_bias = weight.requires_grad, bias is not None and bias.requires_grad
    trained = tuple(p for p in (weight, bias) if p is not None and p.requires_grad)
    w, b = see(weight), None if bias is None else see(bias)
    if w.ndim == 3:
        return _linear_of_each(w, b, trained)

    def to_trained(g: Tensor, x: Tensor) -> list[Tensor]:
        if g.ndim > 2:
            g, x = g.flatten(0, -2), x.flatten(0, -2)
        found = [g.t().mm(x)] if trains_weight else []
        if trains_bias:
            found.append(g.sum(0))
        return found

    return Layer(lambda x: functional.linear(x, w, b), lambda g, x, y: g @ w, trained, to_trained)


def _linear_of_each(w: Tensor, b: Tensor | None, trained: tuple[Tensor, ...]) -> Layer:
    """The same for several clients, (K, …, i) → (K, …, o), each with its own W and b, all of them trained."""

    def forward(x: Tensor) -> Tensor:
        rows = _rows(x)
        y = torch.bmm(rows, w.mT) if b is None else torch.baddbmm(b[:, None], rows, w.mT)
        return y if x.ndim == 3 else y.view(*x.shape[:-1], -1)

    def to_trained(g: Tensor, x: Tensor) -> list[Tensor]:
        g, x = _rows(g), _rows(x)
        return [g.mT.bmm(x)] if b is None else [g.mT.bmm(x), g.sum(1)]

    def to_inputs(g: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return g.bmm(w) if x.ndim == 3 else _rows(g).bmm(w).view_as(x)

    return Layer(forward, to_inputs, trained, to_trained)


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

    def to_inputs(g: Tensor, x: Tensor, y: Tensor) -> Tensor:
        norm_n1 = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        along_n1 = (y * g).sum(dim=-1, keepdim=True).mul_(norm_n1 >= eps)
        return torch.addcmul(g, y, along_n1, value=-1).div_(norm_n1.clamp_min_(eps))

    return Layer(partial(functional.normalize, dim=-1, eps=eps), to_inputs)
