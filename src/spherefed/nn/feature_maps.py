"""Random feature maps between a frozen encoder and the head: a linear head on them is a kernel machine on the features.

Directions ω follow from the seed and are never sent. Inputs are scaled to unit norm; inputs and directions are
truncated to multiples of 2⁻²⁰. A product ωᵀz is then a sum of multiples of 2⁻⁴⁰ below 2¹³, which float64 computes
exactly in any order. So mapped features do not depend on the batch, the number of threads or the library.
"""

from dataclasses import dataclass
from math import isfinite
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from spherefed.errors import ConfigError
from spherefed.nn.size import check_memory
from spherefed.rng import Purpose, stream

BITS = 20
"""Inputs and directions are multiples of 2⁻²⁰."""
MAX_NORM = 2.0**13
"""Upper bound of ‖ω‖: |ωᵀz| ≤ ‖ω‖ < 2¹³ in units of 2⁻⁴⁰ is below 2⁵³, so float64 sums are exact."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RandomFourier:
    """Random Fourier features (Rahimi & Recht 2007) of the Gaussian kernel exp(−‖x − y‖² / 2σ²) on unit vectors.

    z ↦ [cos Ωz, sin Ωz] / √D with D = dim/2 directions ω ~ N(0, I/σ²). The norm of the result is 1.
    """

    kind: ClassVar[str] = "fourier"
    dim: int = 1024
    """Number of features, 2D: a cosine and a sine for each direction."""
    bandwidth: float = 1.0
    """σ. A fixed rule: distances between unit vectors lie in [0, 2], and their median is near 1 (measured: 0.8 for the
    pixels of digits, 1.2 for EfficientNet-Lite0 on CIFAR-100). A choice from clients' data costs a second upload."""

    def __post_init__(self) -> None:
        if self.dim < 2 or self.dim % 2:
            raise ConfigError(f"model.feature_map.dim must be an even number of at least 2, got {self.dim}")
        if not (self.bandwidth > 0 and isfinite(self.bandwidth)):
            raise ConfigError(f"model.feature_map.bandwidth must be a positive number, got {self.bandwidth}")

    def build(self, input_dim: int, seed: int) -> nn.Module:
        check_memory(input_dim * self.dim, "model.feature_map of dim", self.dim, copies=2)
        normal = stream(seed, Purpose.FEATURE_MAP).standard_normal((input_dim, self.dim // 2))
        return FourierMap(_truncated(normal / self.bandwidth, "a larger model.feature_map.bandwidth"))


@dataclass(frozen=True, kw_only=True, slots=True)
class RandomRelu:
    """Random ReLU features z ↦ max(Ωz, 0) with ω ~ N(0, I): the arc-cosine kernel of degree 1 (Cho & Saul 2009)."""

    kind: ClassVar[str] = "relu"
    dim: int = 1024
    """Number of features."""

    def __post_init__(self) -> None:
        if self.dim < 1:
            raise ConfigError(f"model.feature_map.dim must be at least 1, got {self.dim}")

    def build(self, input_dim: int, seed: int) -> nn.Module:
        check_memory(input_dim * self.dim, "model.feature_map of dim", self.dim, copies=4)
        normal = stream(seed, Purpose.FEATURE_MAP).standard_normal((input_dim, self.dim))
        return ReluMap(_truncated(normal, "fewer encoder features"))


FeatureMap = RandomFourier | RandomRelu


class FourierMap(nn.Module):
    """[cos Ωz, sin Ωz] / √D."""

    is_frozen = True
    directions: Tensor
    """(l, D) float64: Ωᵀ, multiples of 2⁻²⁰."""

    def __init__(self, directions_lD: Tensor) -> None:
        super().__init__()
        self.register_buffer("directions", directions_lD)

    def forward(self, features: Tensor) -> Tensor:
        angles_nD = unit_rows(features) @ self.directions
        scale = angles_nD.shape[1] ** -0.5
        return torch.cat([angles_nD.cos().mul_(scale), angles_nD.sin().mul_(scale)], dim=1).to(features.dtype)


class ReluMap(nn.Module):
    """max(Ωz, 0)."""

    is_frozen = True
    directions: Tensor
    """(l, D) float64: Ωᵀ, multiples of 2⁻²⁰."""

    def __init__(self, directions_lD: Tensor) -> None:
        super().__init__()
        self.register_buffer("directions", directions_lD)

    def forward(self, features: Tensor) -> Tensor:
        return (unit_rows(features) @ self.directions).clamp_min_(0).to(features.dtype)


def unit_rows(features: Tensor) -> Tensor:
    """z = h/‖h‖ in float64, truncated towards zero to multiples of 2⁻²⁰; a zero row stays zero."""
    wide = features.to(torch.float64, copy=True, memory_format=torch.contiguous_format)
    # Division by the largest entry first avoids overflow and underflow of the squares.
    wide.div_(wide.abs().amax(dim=1, keepdim=True).clamp_min_(torch.finfo(torch.float64).tiny))
    wide.div_(torch.linalg.vector_norm(wide, dim=1, keepdim=True).clamp_min_(0.5))  # at least 1 for other rows
    # `trunc_` and not a faster conversion to integers, which would hide features that are not finite.
    return wide.mul_(2.0**BITS).trunc_().mul_(2.0**-BITS)


def _truncated(directions: "np.ndarray", remedy: str) -> Tensor:
    rounded = np.trunc(directions * 2.0**BITS) * 2.0**-BITS
    largest = float(np.linalg.norm(rounded, axis=0).max())
    if largest >= MAX_NORM:
        raise ConfigError(f"model.feature_map: a direction has norm {largest:.4g}, limit {MAX_NORM:g}; use {remedy}")
    return torch.from_numpy(rounded)
