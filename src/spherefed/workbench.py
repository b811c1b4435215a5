"""The one resident copy of a model in a process: every client's work is done on it, one after the other.

Models are built per process, not per client; a request is laid onto the bench, worked on and read off again.
"""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from spherefed.errors import ModelError
from spherefed.messages import LEARNED_HEAD, ModelState
from spherefed.nn.chain import chain_of
from spherefed.nn.classifier import Classifier
from spherefed.nn.encoders.norm import batch_layers
from spherefed.nn.layers import may_draw
from spherefed.nn.passes import Precision, training_pass
from spherefed.tensors import Tensors, mismatch

Part = Literal["all", "encoder", "head"]
"""A part of a classifier."""


class Workbench:
    """A classifier with its tensors by name: what is trained, what is averaged, and which of them are shared.

    With `local_statistics` the running statistics of BatchNorm are not, whatever else is. `compile_for` and
    `precision` say how it trains (`nn.passes`).
    """

    def __init__(
        self,
        classifier: Classifier,
        share: Part = "all",
        *,
        local_statistics: bool = False,
        compile_for: int | None = None,
        precision: Precision = "fp32",
    ) -> None:
        if classifier.head.is_open:
            raise ModelError("the feature dimension is not known yet: call the model once before federating it")
        self.classifier = classifier
        self.params: dict[str, Tensor] = {n: p for n, p in classifier.named_parameters() if p.requires_grad}
        # Integer buffers (BatchNorm's step counters) are not exchanged; the fixed head is nobody's statistic.
        self.buffers: dict[str, Tensor] = {
            n: b for n, b in classifier.named_buffers() if b.is_floating_point() and n != LEARNED_HEAD
        }
        layers = batch_layers(classifier)
        kept = {f"{layer}.{name}" for layer in layers for name in ("running_mean", "running_var") if local_statistics}
        # What is laid and read is the same memory, but no history for autograd.
        values = {n: p.detach() for n, p in self.params.items()}
        self.shared_params = part_of(values, share)
        self.shared_buffers = {n: b for n, b in part_of(self.buffers, share).items() if n not in kept}
        shared = {**self.shared_params, **self.shared_buffers}
        self.private = {n: t for n, t in {**values, **self.buffers}.items() if n not in shared}
        """What stays with the client: params and buffers that are not shared."""
        self._head = {"weight": classifier.head.weight.detach()}
        self.device, self.dtype = classifier.head.weight.device, classifier.head.weight.dtype
        self.smallest_batch = 2 if layers else 1
        """Fewest examples to train on at once: one example has no variance to be normalised by."""
        self.scored = training_pass(classifier, compile_for=compile_for, precision=precision)
        """Inputs → features and scores, for training."""
        chain = chain_of(classifier) if compile_for is None and precision == "fp32" else None
        whole = chain is not None and [*map(id, chain.trained)] == [*map(id, self.params.values())]
        self.chain = chain if whole else None
        """A network simple enough to differentiate itself; None: autograd does."""
        self.may_draw = may_draw(classifier)
        """Whether a layer may draw random numbers when it trains."""
        self._layers = tuple(classifier.modules())
        self._own_head = _cloned(self._head)
        self._own_private = _cloned(self.private)
        self._counters = {n: b for n, b in classifier.named_buffers() if not b.is_floating_point()}
        self._own_counters = _cloned(self._counters)
        self._fitting: ModelState | None = None
        """The state that was looked at last and fits: it is laid once per client."""

    def derived(self) -> dict[str, Tensor]:
        """What a bench has without being sent it: the initial head and the initial private part, by prefixed names."""
        private = {f"private.{name}": tensor for name, tensor in self._own_private.items()}
        return _cloned({"head": self._own_head["weight"], **private})

    def adopt(self, derived: Tensors) -> None:
        """Take over what another bench of the same experiment derived."""
        _copy({"head": self._own_head["weight"]}, derived)
        _copy({f"private.{name}": tensor for name, tensor in self._own_private.items()}, derived)

    def lay(self, model: ModelState, private: Tensors | None = None) -> None:
        """Overwrite the bench with this state; where no head or no private part is given, the initial one is put back.

        A calibrated head takes precedence.
        """
        if model is not self._fitting:
            _check_fits(model.params, self.shared_params)
            _check_fits(model.buffers, self.shared_buffers)
            _check_fits(model.head or self._head, self._head)
            self._fitting = model
        if private:
            _check_fits(private, self.private)
        _copy(self.shared_params, model.params)
        _copy(self.shared_buffers, model.buffers)
        _copy(self.private, private or self._own_private)
        if model.head is not None:
            _copy(self._head, model.head)
        elif LEARNED_HEAD not in self.params:
            _copy(self._head, self._own_head)
        _copy(self._counters, self._own_counters)  # else they would count the clients that were here before

    def set_training(self, training: bool = True) -> None:
        """Put every layer into this mode; `Module.train` itself would cost a tenth of a small client's round."""
        for layer in self._layers:
            if layer.training is not training:
                layer.training = training

    def head_of(self, model: ModelState) -> Tensor:
        """The head with which this state classifies, (C, l): calibrated, learned, or the bench's fixed one."""
        if model.head is not None:
            return model.head["weight"]
        return model.params.get(LEARNED_HEAD, self._own_head["weight"])

    def read(self) -> ModelState:
        """A copy of the shared part of what lies on the bench."""
        return ModelState(_cloned(self.shared_params), _cloned(self.shared_buffers))

    def moved_from(self, model: ModelState) -> dict[str, Tensor]:
        """By how much the shared parameters on the bench differ from this model's."""
        moved = torch._foreach_sub([*self.shared_params.values()], [model.params[n] for n in self.shared_params])
        return {name: tensor.contiguous() for name, tensor in zip(self.shared_params, moved, strict=True)}

    def read_private(self) -> dict[str, Tensor]:
        """A copy of the part that is not shared."""
        return _cloned(self.private)

    def copy(self) -> dict[str, Tensor]:
        """A copy of all that is trained or averaged, shared or not."""
        return _cloned({**self.params, **self.buffers})


def part_of(tensors: Mapping[str, Tensor], part: Part) -> dict[str, Tensor]:
    """Those of a classifier's tensors that belong to this part of it."""
    return {n: t for n, t in tensors.items() if part == "all" or n.startswith(f"{part}.")}


def _check_fits(given: Tensors, mine: Tensors) -> None:
    if fault := mismatch(given, mine):
        raise ModelError(f"the model that was sent does not fit this client's: {fault}")


def _copy(to: Mapping[str, Tensor], source: Tensors) -> None:
    if to:
        torch._foreach_copy_([*to.values()], [source[name] for name in to])


def _cloned(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """As they travel: row by row, whatever the layout in which they are worked on."""
    return {name: t.detach().clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}
