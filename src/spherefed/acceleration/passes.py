"""How a classifier is run while it trains: as it is, compiled, or in mixed precision.

Both change the rounding, so both are part of an experiment's identity. Evaluation and calibration statistics never come
here: they are computed in float32 and float64 by the module itself.
"""

import functools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from spherefed.acceleration.chain import plain_forward
from spherefed.errors import ConfigError
from spherefed.nn.classifier import Classifier

Precision = Literal["fp32", "bf16"]
Pass = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Inputs → features and scores."""


def training_pass(classifier: Classifier, *, compile_for: int | None = None, precision: Precision = "fp32") -> Pass:
    """The classifier's forward pass for training.

    `compile_for` is the one batch size that it is compiled for: others, such as an epoch's short last batch, go
    through the module itself, because each would cost a compilation of its own.
    """
    forward = plain_forward(classifier) if compile_for is None else _compiled(classifier, compile_for)
    return forward if precision == "fp32" else _in_bfloat16(forward)


def check_compiler() -> None:
    """Refuse compilation where there is no compiler, before anybody trains."""
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(compiler) is None:
        raise ConfigError(f"compile = true needs a C++ compiler, and {compiler!r} is not here; install it or set CXX")


def _compiled(classifier: Classifier, batch_size: int) -> Pass:
    eager = plain_forward(classifier)

    @functools.cache
    def compiled() -> Callable[[Tensor], Tensor]:
        """When it is first needed: a model that is only looked at needs no compiler."""
        return torch.compile(classifier.encoder, dynamic=False)

    def forward(inputs: Tensor) -> tuple[Tensor, Tensor]:
        if inputs.shape[0] != batch_size:
            return eager(inputs)
        features = compiled()(inputs)
        if classifier.normalize:
            features = torch.nn.functional.normalize(features)
        return features, classifier.head(features)

    return forward


def _in_bfloat16(forward: Pass) -> Pass:
    """Weights stay float32; matrix products and convolutions are computed in bfloat16, features and scores handed on
    in float32."""

    def mixed(inputs: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(inputs.device.type, dtype=torch.bfloat16):
            features, scores = forward(inputs)
        return features.float(), scores.float()

    return mixed


@functools.cache
def check_bfloat16() -> None:
    """Refuse bfloat16 where it would end the process: some virtual machines promise instructions they do not have.

    Tried out in a child process, which may die of it.
    """
    try:
        tried = subprocess.run([sys.executable, "-c", _TRIAL], capture_output=True, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        raise ConfigError("precision = 'bf16' cannot be used here: a trial of it hangs; use 'fp32'") from None
    if tried.returncode < 0:
        name = signal.Signals(-tried.returncode).name
        raise ConfigError(f"precision = 'bf16' cannot be used here: a trial of it died of {name}; use 'fp32'")
    if tried.returncode:
        last = tried.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise ConfigError(f"precision = 'bf16' cannot be used here: {last}; use 'fp32'")


_TRIAL = """
import torch
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 32))
with torch.autocast("cpu", dtype=torch.bfloat16):
    out = net(torch.randn(16, 3, 8, 8))
out.float().square().mean().backward()
assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
"""
