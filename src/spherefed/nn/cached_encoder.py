"""A frozen encoder replaced by the cache of its features: what the cache depends on, and the data set of features."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from spherefed.data.dataset import Dataset
from spherefed.data.examples import Examples
from spherefed.data.feature_cache import cached_features
from spherefed.nn.frozen import BATCH_ROWS, Frozen
from spherefed.tensors import digest, one_thread


def feature_dataset(encoder: nn.Module, description: Any, data: Dataset, root: Path) -> Dataset | None:
    """The data set with features in place of inputs; None if the frozen encoder has no parameters and costs nothing.

    `description` is the encoder as plain data. A changed weight, setting, preprocessing or pixel gives another cache.
    So does code that gives other features, which is seen from one batch.
    """
    frozen = _frozen_part(encoder)
    parameter = next(frozen.parameters(), None)
    if parameter is None:
        return None
    with one_thread():
        key = {
            "encoder": description,
            "weights": digest(frozen.state_dict()),
            "batch_rows": BATCH_ROWS,
            "torch": torch.__version__,
            "device": f"{parameter.device.type} {torch.backends.cpu.get_cpu_capability()}",
        }
        train, test = (_features_of(part, frozen, key, root) for part in (data.train, data.test))
    return replace(data, train=train, test=test, augment=None, memory_mapped=True)


def without_encoder(encoder: nn.Module) -> nn.Module:
    """What remains for inputs that are features already: nothing, or feature map and adapter."""
    return nn.Identity() if isinstance(encoder, Frozen) else nn.Sequential(nn.Identity(), *list(encoder.children())[1:])


def _frozen_part(encoder: nn.Module) -> Frozen:
    part = encoder if isinstance(encoder, Frozen) else next(encoder.children())
    assert isinstance(part, Frozen)
    return part


def _features_of(examples: Examples, frozen: Frozen, key: dict[str, Any], root: Path) -> Examples:
    device = next(frozen.parameters()).device

    def compute(rows: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = frozen(examples.prepared(examples.inputs[rows], device))
        return features.float()

    if not len(examples.inputs):
        dim = frozen(torch.zeros(1, *examples.inputs.shape[1:], device=device)).shape[1]
        return Examples(torch.zeros(0, dim), examples.labels, None, examples.indices)
    rows = torch.arange(len(examples.inputs)) if examples.indices is None else examples.indices
    first = compute(torch.arange(min(BATCH_ROWS, len(examples.inputs))))
    # Only a CPU gives the same bits every time.
    probe = digest({"features": first}) if device.type == "cpu" else ""
    text = json.dumps({**key, "preparation": repr(examples.prepare), "probe": probe}, sort_keys=True)
    features = cached_features(root, examples.inputs, rows, key=text, dim=first.shape[1], compute=compute)
    return Examples(features, examples.labels, None, examples.indices)
