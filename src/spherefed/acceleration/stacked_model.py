"""The models of several clients as one computation: every trained tensor has clients as its first axis.

Works for models without batch statistics and without random layers. Results equal those of single models up to
rounding.
"""

from collections.abc import Mapping
from functools import partial
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from spherefed.acceleration.chain import CLOSED_FORM_LOSSES, Chain, chain_of, grouped_value_and_grad
from spherefed.acceleration.gradients import Penalty, ValueAndGrad, gradient_of
from spherefed.acceleration.stacked_layers import first, stacked
from spherefed.errors import ConfigError
from spherefed.losses import Loss, PerExample
from spherefed.messages import LEARNED_HEAD
from spherefed.nn.classifier import Classifier
from spherefed.nn.layers import uses_randomness
from spherefed.tensors import Tensors

TINY_MODEL, GROUP_SIZE = 65_536, 10
"""Models with at most this many parameters are stacked by default, and this many clients at a time."""


def suggested_stack(classifier: Classifier, cohort: int) -> int:
    """How many clients to stack if the experiment does not say: a rule by model and cohort, never by a clock.

    Measured (docs/speed.md): a tiny chain of plain layers spends its time on operator calls, not on arithmetic, and
    stacked clients share the calls. With more parameters, stacked clients only evict
    each other's parameters from the processor's caches.
    """
    num_params = sum(p.numel() for p in classifier.parameters() if p.requires_grad)
    tiny = num_params <= TINY_MODEL and _is_trained_chain(classifier)
    return min(GROUP_SIZE, cohort) if tiny and cohort > 1 else 0


class StackedModel:
    """The parameters of up to `size` clients, stacked along a first axis."""

    def __init__(self, classifier: Classifier, size: int) -> None:
        if uses_randomness(classifier):
            raise ConfigError(f"stack = {size} needs a model without random layers; use stack = 0")
        trained = {name: p for name, p in classifier.named_parameters() if p.requires_grad}
        self.size = size
        self._classifier = classifier
        self._encoder = stacked(classifier.encoder, size).train()
        own: dict[str, Tensor] = {f"encoder.{name}": p for name, p in self._encoder.named_parameters()}
        if classifier.head.learned:
            head = trained[LEARNED_HEAD].detach()
            own[LEARNED_HEAD] = head.expand(size, *head.shape).clone().requires_grad_()
        if own.keys() - dict(classifier.named_parameters()).keys():
            raise ConfigError(f"stack = {size} needs a model that uses every parameter once; use stack = 0")
        self.params: Mapping[str, Tensor] = {name: own[name] for name in trained}
        self._head = classifier.head.weight.detach().clone()
        self._chains = self._chains_by_size(trained) if _is_trained_chain(classifier) else None

    def load(self, params: Tensors, head: Tensor) -> None:
        """Give every client these parameters and this head."""
        self._head.copy_(head)
        with torch.no_grad():
            torch._foreach_copy_(list(self.params.values()), [params[name] for name in self.params])

    def deltas(self, params: Tensors, num: int) -> list[dict[str, Tensor]]:
        """For each of the first `num` clients, its parameters minus these."""
        with torch.no_grad():
            moved = {name: tensor - params[name] for name, tensor in self.params.items()}
        return [{name: tensor[index] for name, tensor in moved.items()} for index in range(num)]

    def value_and_grad(self, loss: Loss, trained: Tensors, penalty: Penalty | None) -> ValueAndGrad:
        """For any number of the first clients, as many as the batch has."""
        assert trained is self.params, "stacked clients train the whole model"
        assert penalty is None, "stacked clients have no penalty"
        if self._chains is not None and type(loss) in CLOSED_FORM_LOSSES:
            return partial(grouped_value_and_grad, self._chains, loss)
        return partial(self._by_autograd, cast(PerExample, loss))  # an experiment refuses to stack any other loss

    def _by_autograd(
        self, loss: PerExample, inputs: Tensor, labels: Tensor, weights: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        assert weights is not None, "a group weights its examples"
        each_Kn = loss.per_example(self._scores(inputs).flatten(0, 1), labels.flatten()).view_as(labels)
        value_K = (each_Kn * weights).sum(dim=1)
        return value_K.detach(), gradient_of(value_K.sum(), tuple(self.params.values()))

    def _scores(self, inputs: Tensor) -> Tensor:
        """(K, n, c, …) → (K, n, C)."""
        num, longest = inputs.shape[:2]
        side_by_side = inputs.transpose(0, 1).flatten(1, 2)
        features_Knl = self._encoder(side_by_side).reshape(longest, num, -1).transpose(0, 1)
        if self._classifier.normalize:
            features_Knl = functional.normalize(features_Knl, dim=2)
        if LEARNED_HEAD not in self.params:
            return functional.linear(features_Knl, self._head)
        return torch.bmm(features_Knl, first(self.params[LEARNED_HEAD], num).mT)

    def _chains_by_size(self, trained: Mapping[str, Tensor]) -> list[Chain]:
        """One chain per number of clients, the first for one client: a chain computes with views of its parameters."""
        chains = []
        for num in range(1, self.size + 1):
            views = {id(p): self.params[name].detach()[:num] for name, p in trained.items()}
            views.setdefault(id(self._classifier.head.weight), self._head)
            chain = chain_of(self._classifier, lambda p, views=views: views[id(p)], stacked=True)  # type: ignore[misc]
            assert chain is not None
            chains.append(chain)
        return chains


def _is_trained_chain(classifier: Classifier) -> bool:
    """Whether the classifier is a plain chain whose encoder is trained as a whole."""
    chain = chain_of(classifier)
    trained = [p for p in classifier.parameters() if p.requires_grad]
    if chain is None or [*map(id, chain.trained)] != [*map(id, trained)]:
        return False
    return all(p.requires_grad for p in classifier.encoder.parameters())
