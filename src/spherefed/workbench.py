"""The one resident copy of a model in a process: every client's work is done on it, one after the other.

Models are built per process, not per client; a request is laid onto the bench, worked on and read off again.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from spherefed.errors import ModelError
from spherefed.messages import ModelState
from spherefed.nn.classifier import Classifier
from spherefed.tensors import Tensors, mismatch


class Workbench:
    """A classifier with its tensors by name, split into what is trained, what is averaged, and the head."""

    def __init__(self, classifier: Classifier) -> None:
        if classifier.head.is_open:
            raise ModelError("the feature dimension is not known yet: call the model once before federating it")
        self.classifier = classifier
        self.params: dict[str, Tensor] = {n: p for n, p in classifier.named_parameters() if p.requires_grad}
        # Integer buffers (BatchNorm's step counters) are not exchanged; the fixed head is nobody's statistic.
        self.buffers: dict[str, Tensor] = {
            n: b for n, b in classifier.named_buffers() if b.is_floating_point() and n != "head.weight"
        }
        self.device = classifier.head.weight.device
        self._own_head = classifier.head.weight.detach().clone()

    def lay(self, model: ModelState) -> None:
        """Overwrite the bench with this state; without a calibrated head the own one is put back."""
        head = self.classifier.head.weight
        parts = [(model.params, self.params), (model.buffers, self.buffers)]
        if model.head is not None:
            parts.append((model.head, {"weight": head}))
        for given, mine in parts:
            if fault := mismatch(given, mine):
                raise ModelError(f"the model that was sent does not fit this client's: {fault}")
            _copy(mine, given)
        if model.head is None and not self.classifier.head.learned:
            _copy({"weight": head}, {"weight": self._own_head})

    def read(self) -> ModelState:
        """A copy of what lies on the bench."""
        return ModelState(_cloned(self.params), _cloned(self.buffers))


def _copy(to: Mapping[str, Tensor], source: Tensors) -> None:
    if to:
        with torch.no_grad():
            torch._foreach_copy_(list(to.values()), [source[name] for name in to])


def _cloned(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}
