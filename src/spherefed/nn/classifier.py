"""The classifier: an encoder and a head, the module that is trained, measured, calibrated and evaluated.

Two functions wrap a user's network: `hyperspherical` adds unit features and a fixed head to an encoder;
`from_classifier` does so in place of the last layer of a classifier.
"""

import copy
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from spherefed.errors import ConfigError, ModelError
from spherefed.nn.heads import ClassifierHead, Orthonormal
from spherefed.nn.layers import eval_mode

if TYPE_CHECKING:
    from spherefed.calibration.ffc import Statistics
    from spherefed.calibration.solution import Solution


class Classifier(nn.Module):
    """scores = W · z, where z are the encoder's features, scaled to unit norm if `normalize`.

    A fixed head may be uninitialized until the first forward pass determines the feature dimension. It is a buffer, so
    an optimizer can be created before that: all parameters exist.
    """

    def __init__(
        self, encoder: nn.Module, head: ClassifierHead, *, num_classes: int, normalize: bool, seed: int = 0
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.normalize = normalize
        self.num_classes = num_classes
        self.seed = seed

    def raw_features(self, inputs: Tensor) -> Tensor:
        """The output of the encoder, (n, l), not normalized."""
        features = self.encoder(inputs)
        if not isinstance(features, Tensor) or features.ndim != 2:
            shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise ModelError(f"the encoder must return one row of features per input, (n, l); got {shape}; flatten it")
        if self.head.is_uninitialized:
            self._build_head(features)
        elif (dim := features.shape[1]) != (expected := self.head.weight.shape[1]):
            raise ModelError(f"the encoder returns {dim} features, the head expects {expected}")
        return features

    def _build_head(self, features: Tensor) -> None:
        """The fixed head of the feature dimension that these features have."""
        dtype = next((p.dtype for p in self.encoder.parameters()), torch.float32)
        with torch.inference_mode(False):  # a later training step uses the head, so it must be a normal tensor
            weight = _orthonormal_head(self.num_classes, features.shape[1], self.seed).weight
            self.head.weight = weight.to(features.device, dtype)

    def features(self, inputs: Tensor) -> Tensor:
        """The input of the head: raw features h, or z = h/‖h‖ if `normalize`."""
        raw = self.raw_features(inputs)
        return functional.normalize(raw, dim=1) if self.normalize else raw

    def forward(self, inputs: Tensor) -> Tensor:
        features = self.features(inputs)
        scores: Tensor = self.head(features)
        return scores

    def calibrate(self, statistics: "Statistics", ridge: float = 0.0) -> "Solution":
        """Replace the head in place by the globally optimal head (SphereFed, Eq. 10; Eq. 12 with ridge λ)."""
        if not hasattr(statistics, "solve"):
            raise ModelError(
                f"calibrate needs the statistics of all clients, got a {type(statistics).__name__}; "
                "write model.calibrate(sum(sf.statistics(model, batches) for batches in clients))"
            )
        solution = statistics.solve(ridge)
        if self.head.is_uninitialized:
            raise ModelError("the feature dimension is not known yet; call the model once, or give dim=")
        weight = self.head.weight
        if solution.weight.shape != weight.shape:
            raise ModelError(
                f"the statistics give a head of shape {tuple(solution.weight.shape)}, the head of this model "
                f"has shape {tuple(weight.shape)}; measure them with this model"
            )
        with torch.no_grad():
            weight.copy_(solution.weight)
        return solution


def hyperspherical(
    encoder: nn.Module, num_classes: int, dim: int | None = None, *, example: Tensor | None = None, seed: int = 0
) -> Classifier:
    """Add unit features and a fixed orthonormal head (SphereFed, Eq. 4) to any encoder; no layer is removed.

    The feature dimension is `dim`, or is determined by a forward pass of `example`, or by the first batch. The same
    seed gives the same head on every machine.

    >>> model = hyperspherical(nn.Linear(8, 16), num_classes=10)
    >>> model(torch.zeros(4, 8)).shape
    torch.Size([4, 10])
    """
    if not isinstance(cast(object, encoder), nn.Module):
        given = f"the class {encoder.__name__}" if isinstance(encoder, type) else repr(encoder)
        raise ModelError(f"encoder must be an nn.Module, got {given}; pass an instance, such as nn.Linear(8, 16)")
    if not isinstance(num_classes, int) or num_classes < 2:
        raise ModelError(f"num_classes must be a whole number of at least 2, got {num_classes!r}; count your classes")
    head = ClassifierHead(None, learned=False) if dim is None else _orthonormal_head(num_classes, dim, seed)
    model = Classifier(encoder, head, num_classes=num_classes, normalize=True, seed=seed)
    if head.is_uninitialized and example is not None:
        with eval_mode(encoder), torch.no_grad():  # the pass must not change running statistics
            model(example)
    return model


def from_classifier(net: nn.Module, num_classes: int, layer: str | None = None, *, seed: int = 0) -> Classifier:
    """A copy of `net` in which unit features and a fixed orthonormal head replace the last Linear layer.

    `layer` is the name of the Linear layer to replace; by default the last one. It must have `num_classes` outputs.

    >>> net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 10))
    >>> from_classifier(net, num_classes=10).head
    ClassifierHead((10, 16), fixed)
    """
    linears = {name: module for name, module in net.named_modules() if isinstance(module, nn.Linear)}
    if not linears:
        raise ModelError("the network has no Linear layer to replace; use hyperspherical(encoder, num_classes)")
    name = list(linears)[-1] if layer is None else layer
    if name not in linears:
        raise ModelError(f"no Linear layer has the name {name!r}; allowed: {', '.join(map(repr, linears))}")
    old = linears[name]
    if old.out_features != num_classes:
        layers = "; ".join(f"{n!r}: {m.in_features} → {m.out_features}" for n, m in linears.items())
        raise ModelError(
            f"layer {name!r} has {old.out_features} outputs, not num_classes = {num_classes}; "
            f"choose another with layer=; Linear layers are {layers}"
        )
    encoder = _remove_layer(copy.deepcopy(net), name)
    head = _orthonormal_head(num_classes, old.in_features, seed).to(old.weight.device)
    return Classifier(encoder, head, num_classes=num_classes, normalize=True, seed=seed)


def unreadable_inputs(kind: str, input_shape: tuple[int, ...], dtype: str, error: Exception) -> ModelError:
    """What to raise if an encoder of this kind fails on a batch of such inputs."""
    cause, *_ = str(error).splitlines() or [type(error).__name__]
    hint = ""
    if dtype == "int64":
        hint = "; whole numbers are passed on as they are, like token ids: if they are features or pixels, give floats"
    elif len(input_shape) == 2:  # an image without the dimension of channels that convolutions need
        height, width = input_shape
        hint = f"; if they are images of one channel, give them as (n, 1, {height}, {width})"
    elif len(input_shape) == 3 and input_shape[-1] in (1, 3) and input_shape[0] not in (1, 3):
        height, width, channels = input_shape
        hint = f"; if they are images, give them with channels first: (n, {channels}, {height}, {width})"
    return ModelError(
        f"encoder {kind!r} cannot read inputs of {input_shape}, {dtype}: "
        f"{cause}; it must accept a batch of them and return one row of features for each{hint}"
    )


def num_features(encoder: nn.Module, input_shape: tuple[int, ...], dtype: str, kind: str) -> int:
    """The length of a row of float32 features; a ModelError unless the encoder returns two of them for two inputs."""
    try:
        with torch.no_grad():  # two inputs: layers of images take one image without channels for a batch's
            features = encoder.eval()(torch.zeros(2, *input_shape, dtype=getattr(torch, dtype)))
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise unreadable_inputs(kind, input_shape, dtype, error) from error
    if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != 2:
        raise _no_row_of_features(features, kind)
    if features.dtype == torch.float64:
        raise ModelError(f"encoder {kind!r} must return float32 features, got float64; call .float() on them")
    return features.shape[1]


def _no_row_of_features(features: object, kind: str) -> ModelError:
    if isinstance(features, Tensor):
        given, todo = f"(2, l) for two; got {tuple(features.shape)}", "flatten them"
    else:
        given, todo = f"got a {type(features).__name__}", "return the tensor of features alone"
    return ModelError(f"encoder {kind!r} must return one row of features per input, {given}; {todo}")


def nothing_trained(encoder: str, head: str) -> ConfigError:
    """What to raise if rounds have no parameter to train, for an encoder and a fixed head of these kinds."""
    return ConfigError(
        f"nothing is trained: encoder {encoder!r} has no parameters to train, and head {head!r} is fixed; "
        "use head 'learned', or model.frozen = true with rounds = 0 and a calibration"
    )


def on_device(classifier: Classifier, device: str) -> Classifier:
    """The classifier moved to a torch device by name."""
    try:
        return classifier.to(device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"device {device!r} cannot be used: {str(error).splitlines()[0]}; try --device cpu"
        ) from error


def _orthonormal_head(num_classes: int, dim: int, seed: int) -> ClassifierHead:
    return Orthonormal().build(num_classes, dim, seed)


def _remove_layer(net: nn.Module, name: str) -> nn.Module:
    if name == "":
        return nn.Identity()
    parent, _, attribute = name.rpartition(".")
    setattr(net.get_submodule(parent), attribute, nn.Identity())
    return net
