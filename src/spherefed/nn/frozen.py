"""Encoders that are not trained: their features do not depend on the batch that an example is in.

A row of a matrix product depends on the number of rows, because libraries choose another kernel for another size. A
frozen encoder therefore computes in batches of one fixed size and pads the last one. Then every partition of the same
examples gives the same features to the bit, on one type of machine.
"""

import torch
from torch import Tensor, nn

BATCH_ROWS = 32
"""Rows of every batch of a frozen encoder. Part of the numerics: another size gives other bits."""


class Frozen(nn.Module):
    """A module without gradients that always stays in eval mode and computes in batches of `BATCH_ROWS` rows."""

    is_frozen = True

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module.requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> "Frozen":
        """Stays in eval mode, whatever is asked for."""
        super().train(False)
        return self

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            batches = [self._features(batch) for batch in torch.split(inputs, BATCH_ROWS)]
        return torch.cat(batches)

    def _features(self, batch: Tensor) -> Tensor:
        missing = BATCH_ROWS - len(batch)
        if missing:
            batch = torch.cat([batch, batch.new_zeros(missing, *batch.shape[1:])])
        features: Tensor = self.module(batch)
        return features[: BATCH_ROWS - missing]
