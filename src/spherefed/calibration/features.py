"""The inputs of a model's head, for calibrations that refit the head."""

from collections.abc import Iterable

import torch
from torch import Tensor

from spherefed.errors import CalibrationError
from spherefed.nn.classifier import Classifier
from spherefed.nn.layers import eval_mode


def labelled_features(model: Classifier, batches: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Features (n, l) and labels (n,). Features have unit norm only if the model normalizes them.

    The model runs in eval mode and without autocast; the mode of every submodule is restored afterwards.
    """
    device = model.head.weight.device
    features = [torch.empty(0, model.head.weight.shape[1], dtype=model.head.weight.dtype, device=device)]
    labels = [torch.empty(0, dtype=torch.int64, device=device)]
    # no_grad, not inference_mode: autograd cannot save inference tensors, and the refit of the head uses autograd.
    with eval_mode(model), torch.no_grad(), torch.autocast(device.type, enabled=False):
        for inputs, targets in batches:
            features.append(model.features(inputs.to(device)))
            labels.append(targets.to(device))
    rows, targets = torch.cat(features), torch.cat(labels)
    if not bool(rows.isfinite().all()):
        bad = int((~rows.isfinite().all(dim=1)).nonzero()[0])
        raise CalibrationError(f"features of example {bad} are not finite; the model may have diverged")
    return rows, targets
