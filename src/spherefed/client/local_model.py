"""The one copy of the model in a process: its clients train on it, one after the other, or in groups if stacked.

Models are built per process, not per client. A request's state is loaded, worked on, and read back.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from spherefed.acceleration.gradients import model_gradients
from spherefed.acceleration.passes import Precision
from spherefed.acceleration.stacked_model import StackedModel
from spherefed.errors import ModelError
from spherefed.messages import LEARNED_HEAD, ModelState, Part, part_of
from spherefed.nn.classifier import Classifier
from spherefed.nn.layers import batch_norm_layers, frozen_tensors, trainable_modules, uses_randomness
from spherefed.tensors import Tensors, digest, mismatch


class LocalModel:
    """A classifier with its tensors by name: which are trained, which are averaged, and which of them are shared.

    `local_statistics` keeps the running statistics of BatchNorm private. `compile_for` and `precision` say how the
    model is trained (`acceleration.passes`), `stack` how many clients train as one computation (0: one at a time).
    `frozen_digest` is that of the whole model, if a cache takes the place of the frozen encoder. `own_components` says
    that components of the user, such as a loss, work on the model.
    """

    def __init__(
        self,
        classifier: Classifier,
        share: Part = "all",
        *,
        local_statistics: bool = False,
        compile_for: int | None = None,
        precision: Precision = "fp32",
        stack: int = 0,
        frozen_digest: str | None = None,
        own_components: bool = False,
    ) -> None:
        if classifier.head.is_uninitialized:
            raise ModelError("the feature dimension is not known yet: call the model once before federating it")
        self.classifier = classifier
        self.params: dict[str, Tensor] = {n: p for n, p in classifier.named_parameters() if p.requires_grad}
        self.frozen = frozen_tensors(classifier)
        """What every process has and none trains: a frozen encoder, its feature map, frozen layers, integer buffers."""
        self._frozen_digest = frozen_digest
        # Integer buffers (BatchNorm's step counters) are not exchanged; the fixed head is not a running statistic.
        fixed = {LEARNED_HEAD, *self.frozen}
        self.buffers = {n: b for n, b in classifier.named_buffers() if b.is_floating_point() and n not in fixed}
        self.uses_randomness = own_components or uses_randomness(classifier)
        """Whether a layer, or a component of the user, may draw from torch's generator."""
        trainable = trainable_modules(classifier)
        layers = [name for name in batch_norm_layers(classifier) if name in trainable]
        local = {f"{layer}.{name}" for layer in layers for name in ("running_mean", "running_var") if local_statistics}
        # Loading and reading use detached views of the same memory, so that autograd records nothing.
        values = {n: p.detach() for n, p in self.params.items()}
        self.shared_params = part_of(values, share)
        self.shared_buffers = {n: b for n, b in part_of(self.buffers, share).items() if n not in local}
        shared = {**self.shared_params, **self.shared_buffers}
        self.private = {n: t for n, t in {**values, **self.buffers}.items() if n not in shared}
        """What stays with the client: params and buffers that are not shared."""
        self.device, self.dtype = classifier.head.weight.device, classifier.head.weight.dtype
        self.smallest_batch = 2 if layers else 1
        """Smallest batch to train on: BatchNorm cannot normalise one example."""
        self.gradients = model_gradients(classifier, self.params, compile_for=compile_for, precision=precision)
        self.stacked = StackedModel(classifier, stack) if stack else None
        self._layers, self._head = tuple(trainable.values()), {"weight": classifier.head.weight.detach()}
        self._counters = {n: b for n, b in classifier.named_buffers() if not b.is_floating_point()}
        self._initial_head, self._initial_private = _cloned(self._head), _cloned(self.private)
        self._initial_counters = _cloned(self._counters)
        self._checked: ModelState | None = None
        """The last state that was checked and fits: it is loaded once per client."""

    def load_state(self, model: ModelState, private: Tensors | None = None) -> None:
        """Overwrite the model with this state.

        Without a head or a private part, the initial one is restored; a calibrated head takes precedence.
        """
        if model is not self._checked:
            _check_fits(model.params, self.shared_params)
            _check_fits(model.buffers, self.shared_buffers)
            _check_fits(model.head or self._head, self._head)
            self._checked = model
        if private:
            _check_fits(private, self.private)
        _copy(self.shared_params, model.params)
        _copy(self.shared_buffers, model.buffers)
        _copy(self.private, private or self._initial_private)
        if model.head is not None:
            _copy(self._head, model.head)
        elif LEARNED_HEAD not in self.params:
            _copy(self._head, self._initial_head)
        _copy(self._counters, self._initial_counters)  # otherwise they would count the steps of earlier clients

    def state(self) -> ModelState:
        """A copy of the shared part."""
        return ModelState(_cloned(self.shared_params), _cloned(self.shared_buffers))

    def private_state(self) -> dict[str, Tensor]:
        """A copy of the private part."""
        return _cloned(self.private)

    def full_state(self) -> dict[str, Tensor]:
        """A copy of everything that is trained or averaged, shared or private."""
        return _cloned({**self.params, **self.buffers})

    def load_for_training(self, model: ModelState, private: Tensors, *, stacked: bool) -> Tensors:
        """Load this state for one client, or for every client of a stacked group; returns what is trained."""
        if not stacked:
            self.load_state(model, private)
            return self.params
        assert self.stacked is not None
        self.stacked.load(model.params, self.head_of(model))
        return self.stacked.params

    def updates_from(
        self, model: ModelState, num_clients: int, *, stacked: bool
    ) -> list[tuple[dict[str, Tensor], dict[str, Tensor]]]:
        """For each client of the group, its shared parameters minus this model's, and its shared buffers."""
        if stacked:  # models with buffers are not stacked
            assert self.stacked is not None
            return [(delta, {}) for delta in self.stacked.deltas(model.params, num_clients)]
        moved = torch._foreach_sub([*self.shared_params.values()], [model.params[n] for n in self.shared_params])
        delta = {name: tensor.contiguous() for name, tensor in zip(self.shared_params, moved, strict=True)}
        return [(delta, {name: buffer.clone() for name, buffer in self.shared_buffers.items()})]

    def head_of(self, model: ModelState) -> Tensor:
        """The head that this state classifies with, (C, l): calibrated, learned, or the fixed one of this process."""
        if model.head is not None:
            return model.head["weight"]
        return model.params.get(LEARNED_HEAD, self._initial_head["weight"])

    def set_training(self, training: bool = True) -> None:
        """Put every layer that is not frozen into this mode; `Module.train` costs a tenth of a small client's round."""
        for layer in self._layers:
            if layer.training is not training:
                layer.training = training

    def frozen_digest(self) -> str:
        """SHA-256 of what is neither trained nor sent, integer buffers as they began; empty if there is nothing."""
        fixed = {name: self._initial_counters.get(name, tensor) for name, tensor in self.frozen.items()}
        return self._frozen_digest or (digest(fixed) if fixed else "")

    def derived_state(self) -> dict[str, Tensor]:
        """What every process derives from the seed and is never sent: the initial head and the initial private part."""
        private = {f"private.{name}": tensor for name, tensor in self._initial_private.items()}
        return _cloned({"head": self._initial_head["weight"], **private})

    def load_derived(self, derived_state: Tensors) -> None:
        """Use the derived tensors of another process of the same experiment."""
        _copy({"head": self._initial_head["weight"]}, derived_state)
        _copy({f"private.{name}": tensor for name, tensor in self._initial_private.items()}, derived_state)


def _check_fits(given: Tensors, own: Tensors) -> None:
    forms = [{name: (t.shape, t.dtype) for name, t in tensors.items()} for tensors in (given, own)]
    if forms[0] != forms[1]:
        raise ModelError(f"the model that was sent does not fit this client's: {mismatch(given, own)}")


def _copy(to: Mapping[str, Tensor], source: Tensors) -> None:
    if to:
        torch._foreach_copy_([*to.values()], [source[name] for name in to])


def _cloned(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies in row-major layout, as they are sent, whatever layout the model computes in."""
    return {name: t.detach().clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}
