"""Encoder + head = classifier: the one module that is trained, measured, calibrated and evaluated.

Also the two doors for a user's own network: `hyperspherical` puts a sphere on top of an encoder, `from_classifier`
replaces the last layer of a whole classifier.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from spherefed.errors import ModelError
from spherefed.nn.heads import Linear, Orthonormal

if TYPE_CHECKING:
    from spherefed.calibration.ffc import Statistics
    from spherefed.calibration.solution import Solution


class Classifier(nn.Module):
    """scores = W · z with z the encoder's features, on the unit sphere if `normalize`.

    The head may be unknown until the first forward pass shows how wide the features are; since it is fixed then,
    no parameter is missing in the meantime and optimisers may be made before.
    """

    def __init__(self, encoder: nn.Module, head: Linear, *, num_classes: int, normalize: bool, seed: int = 0) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.normalize = normalize
        self.num_classes = num_classes
        self.seed = seed

    def raw_features(self, inputs: Tensor) -> Tensor:
        """What the encoder says, (n, l), not normalised."""
        features, head = self.encoder(inputs), self.head
        if not isinstance(features, Tensor) or features.ndim != 2:
            shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise ModelError(f"the encoder must return one row of features per input, (n, l); got {shape}; flatten it")
        if head.is_open:
            with torch.inference_mode(False):  # the head outlives the pass that found its width, and is trained with
                head.weight = _sphere(self.num_classes, features.shape[1], self.seed).weight.to(
                    features.device, next((p.dtype for p in self.encoder.parameters()), torch.float32)
                )
        elif features.shape[1] != head.weight.shape[1]:
            raise ModelError(
                f"the encoder returns {features.shape[1]} features, the head expects {head.weight.shape[1]}"
            )
        return features

    def features(self, inputs: Tensor) -> Tensor:
        """What the head sees: raw features, or z = h/‖h‖ on the unit sphere."""
        raw = self.raw_features(inputs)
        return functional.normalize(raw, dim=1) if self.normalize else raw

    def forward(self, inputs: Tensor) -> Tensor:
        features = self.features(inputs)
        scores: Tensor = self.head(features)
        return scores

    def calibrate(self, statistics: "Statistics", ridge: float = 0.0) -> "Solution":
        """Replace the head by the globally optimal one (SphereFed, Eq. 10; Eq. 12 with ridge λ), in place."""
        solution = statistics.solve(ridge)
        if self.head.is_open:
            raise ModelError("the feature dimension is not known yet: call the model once, or give dim=")
        weight = self.head.weight
        if solution.weight.shape != weight.shape:
            raise ModelError(
                f"the statistics give a head of shape {tuple(solution.weight.shape)}, this model's is "
                f"{tuple(weight.shape)}; measure them with this model"
            )
        with torch.no_grad():
            weight.copy_(solution.weight)
        return solution


def hyperspherical(
    encoder: nn.Module, num_classes: int, dim: int | None = None, *, example: Tensor | None = None, seed: int = 0
) -> Classifier:
    """Put unit features and a fixed orthonormal head (SphereFed, Eq. 4) on any encoder; no layer is removed.

    The feature dimension is `dim`, or what one dry forward pass of `example` shows, or what the first batch shows.
    Everybody who passes the same seed gets the same head.

    >>> model = hyperspherical(nn.Linear(8, 16), num_classes=10)
    >>> model(torch.zeros(4, 8)).shape
    torch.Size([4, 10])
    """
    head = Linear(None, learned=False) if dim is None else _sphere(num_classes, dim, seed)
    model = Classifier(encoder, head, num_classes=num_classes, normalize=True, seed=seed)
    if head.is_open and example is not None:
        with eval_mode(encoder), torch.no_grad():  # a dry pass must not touch running statistics
            model(example)
    return model


def from_classifier(net: nn.Module, num_classes: int, layer: str | None = None, *, seed: int = 0) -> Classifier:
    """A copy of `net` whose last Linear gives way to the sphere: unit features and a fixed orthonormal head.

    `layer` names the Linear to replace; without it the last one is taken, and only if it has `num_classes` outputs.

    >>> net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 10))
    >>> from_classifier(net, num_classes=10).head
    Linear((10, 16), fixed)
    """
    linears = {name: module for name, module in net.named_modules() if isinstance(module, nn.Linear)}
    if not linears:
        raise ModelError("the network has no Linear layer to replace; use hyperspherical(encoder, num_classes)")
    name = list(linears)[-1] if layer is None else layer
    if name not in linears:
        raise ModelError(f"no Linear layer is called {name!r}; there are {', '.join(map(repr, linears))}")
    old = linears[name]
    if old.out_features != num_classes:
        sized = "; ".join(f"{n!r}: {m.in_features} → {m.out_features}" for n, m in linears.items())
        raise ModelError(
            f"layer {name!r} has {old.out_features} outputs, not num_classes = {num_classes}; "
            f"name the right one with layer=; Linear layers are {sized}"
        )
    encoder = _without(copy.deepcopy(net), name)
    head = _sphere(num_classes, old.in_features, seed).to(old.weight.device)
    return Classifier(encoder, head, num_classes=num_classes, normalize=True, seed=seed)


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Everything in eval mode; afterwards each part is back in its own (a frozen BatchNorm stays frozen)."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def _sphere(num_classes: int, dim: int, seed: int) -> Linear:
    return Orthonormal().build(num_classes, dim, seed)


def _without(net: nn.Module, name: str) -> nn.Module:
    if name == "":
        return nn.Identity()
    parent, _, attribute = name.rpartition(".")
    setattr(net.get_submodule(parent), attribute, nn.Identity())
    return net
