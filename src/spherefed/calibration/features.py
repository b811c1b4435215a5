"""The features that a model's head sees, for calibrations that refit the head itself."""

from collections.abc import Iterable

import torch
from torch import Tensor

from spherefed.errors import CalibrationError
from spherefed.nn.classifier import Classifier


def labelled_features(model: Classifier, batches: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Features (n, l), on the unit sphere only if the model puts them there, and labels (n,).

    In eval mode and without autocast; the model's mode is put back afterwards.
    """
    was_training = model.training
    model.eval()
    device = model.head.weight.device
    features = [torch.empty(0, model.head.weight.shape[1], dtype=model.head.weight.dtype, device=device)]
    labels = [torch.empty(0, dtype=torch.int64, device=device)]
    try:
        # Not inference mode: what is refitted on these features later needs their gradients' bookkeeping.
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            for inputs, targets in batches:
                features.append(model.features(inputs.to(device)))
                labels.append(targets.to(device))
    finally:
        model.train(was_training)
    rows, targets = torch.cat(features), torch.cat(labels)
    if not bool(rows.isfinite().all()):
        bad = int((~rows.isfinite().all(dim=1)).nonzero()[0])
        raise CalibrationError(f"features of example {bad} are not finite; the model may have diverged")
    return rows, targets
