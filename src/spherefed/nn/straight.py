"""A chain of plain layers as the functions they call: the same operations without `Module.__call__` around each.

For small networks that is half of a forward pass. Only layers whose arithmetic is one known function are taken apart;
a network with any other layer, or with a hook, is called as the module it is.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from spherefed.nn.classifier import Classifier

Function = Callable[[Tensor], Tensor]


def straight(classifier: Classifier) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Inputs → features and scores, as the classifier has them; the functions hold its parameters, not their values."""
    chain = _functions(classifier.encoder)
    if chain is None:
        return partial(_called, classifier)
    if classifier.normalize:
        chain.append(functional.normalize)
    return partial(_through, chain, classifier.head.weight)


def _called(classifier: Classifier, inputs: Tensor) -> tuple[Tensor, Tensor]:
    features = classifier.features(inputs)
    return features, classifier.head(features)


def _through(chain: list[Function], head: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
    for function in chain:
        inputs = function(inputs)
    return inputs, functional.linear(inputs, head)


def _functions(module: nn.Module) -> list[Function] | None:
    """None: there is a layer, or a hook, that only a call does justice to."""
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
        return None
    if type(module) is nn.Sequential:
        parts = [_functions(child) for child in module.children()]
        return None if None in parts else [function for part in parts for function in part or ()]
    function = _function(module)
    return None if function is None else [function]


def _function(layer: nn.Module) -> Function | None:
    match layer:  # types are compared too, because subclasses may do anything
        case nn.Linear() if type(layer) is nn.Linear:
            return partial(functional.linear, weight=layer.weight, bias=layer.bias)
        case nn.ReLU() if type(layer) is nn.ReLU and not layer.inplace:
            return torch.relu
        case nn.Flatten() if type(layer) is nn.Flatten:
            return partial(torch.flatten, start_dim=layer.start_dim, end_dim=layer.end_dim)
    return None
