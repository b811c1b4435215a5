"""Compare cut-offs of the FFC solve with λ = 0: l·2⁻⁵²·λ_max alone, with n·2⁻⁴⁰, and with the proven n·l·2⁻⁴⁰.

    python benchmarks/rank_cutoff.py [--large]

The reference is the minimum-norm least-squares head on the float64 features before truncation, with the rank that the
network has by construction (or by its singular values, for generic features). `--large` adds l = 1024 and 2048.
"""

import sys
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from spherefed.calibration.ffc import Statistics, statistics
from spherefed.calibration.solution import Solution, solve
from spherefed.data.sources import load
from spherefed.nn.classifier import Classifier, hyperspherical
from spherefed.tensors import one_thread

NOISE = {"rounding only": 0.0, "n·2⁻⁴⁰": 1.0, "n·l·2⁻⁴⁰": None}
"""Multiples of n·2⁻⁴⁰ below which eigenvalues count as zero; None: l."""


@dataclass(frozen=True)
class Case:
    name: str
    encoder: nn.Module
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    rank: int | None = None
    """By construction; None: as many as there are singular values above 10⁻⁵ of the largest."""


def dependent_cases() -> list[Case]:
    """Linearly dependent features of the digits images."""
    train, test = digits()
    few = (train[0][:150], train[1][:150])
    bottleneck = nn.Sequential(nn.Linear(64, 16), nn.Linear(16, 64))
    cases = [
        Case("bottleneck 16, l = 64", bottleneck, train, test, 17),
        Case("Linear(64, 128), n = 150", nn.Linear(64, 128), few, test),
    ]
    for dim in (64, 256, 1024):
        layers = nn.Sequential(nn.Linear(64, dim), nn.ReLU(), nn.LayerNorm(dim, elementwise_affine=False))
        cases.append(Case(f"LayerNorm, l = {dim}", layers, train, test, dim - 1 if dim == 64 else None))
    return cases


def regular_cases(dims: tuple[int, ...]) -> list[Case]:
    """Random ReLU and linear features of Gaussian clusters with n = 4 l, which have full rank."""
    cases = []
    for dim in dims:
        for name, encoder in (
            ("ReLU", nn.Sequential(nn.Linear(2 * dim, dim), nn.ReLU())),
            ("linear", nn.Linear(2 * dim, dim, bias=False)),
        ):
            train, test = clusters(4 * dim, 2 * dim), clusters(1000, 2 * dim, seed=1)
            cases.append(Case(f"{name}, l = {dim}, n = {4 * dim}", encoder, train, test, dim))
    return cases


def digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    data = load("digits", None)
    parts = [next(iter(part.in_order(10**6, device=torch.device("cpu")))) for part in (data.train, data.test)]
    (a, b), (c, d) = parts
    return (a.flatten(1), b), (c.flatten(1), d)


def clusters(num: int, dim: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    means = torch.randn(10, dim, generator=torch.Generator().manual_seed(99)) * 0.2
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(num) % 10
    return means[labels] + torch.randn(num, dim, generator=generator), labels


def compare(case: Case) -> list[str]:
    """One row of the table for each cut-off."""
    model = hyperspherical(case.encoder, num_classes=10)
    measured = statistics(model, [case.train])
    weight_Cl, rank = reference(model, case)
    rows = [row(case.name, "reference", rank, 1.0, accuracy(model, weight_Cl, case.test), "")]
    gram, cross = measured.gram(), measured.cross()
    for name, factor in NOISE.items():
        with one_thread():
            found = solve(gram, cross, 0.0, noise=noise(measured, factor))
        length = float(found.weight.norm() / weight_Cl.norm())
        rows.append(row(case.name, name, found.rank, length, accuracy(model, found.weight, case.test), found.path))
    _check_same_bits(case.name, gram, cross, measured)
    return rows


def _check_same_bits(name: str, gram: Tensor, cross: Tensor, measured: Statistics) -> None:
    """Where Cholesky is accepted, the cut-off changes no bit of the head."""
    with one_thread():
        before: Solution = solve(gram, cross, 0.0)
        after = measured.solve()
    if before.path == after.path == "cholesky":
        assert torch.equal(before.weight, after.weight), name


def noise(measured: Statistics, factor: float | None) -> float:
    return measured.num_examples * (measured.dim if factor is None else factor) * 2.0**-40


def reference(model: Classifier, case: Case) -> tuple[Tensor, int]:
    """Minimum-norm least squares by the singular value decomposition of the rows before truncation."""
    inputs, labels = case.train
    with torch.no_grad():
        rows = nn.functional.normalize(model.raw_features(inputs).double(), dim=1).numpy()
    left, singular, right = np.linalg.svd(rows, full_matrices=False)
    rank = int((singular > 1e-5 * singular[0]).sum()) if case.rank is None else case.rank
    targets = np.eye(10)[labels.numpy()]
    weight = right[:rank].T @ ((left[:, :rank].T @ targets) / singular[:rank, None])
    return torch.from_numpy(weight.T), rank


def accuracy(model: Classifier, weight_Cl: Tensor, test: tuple[Tensor, Tensor]) -> float:
    with torch.no_grad():
        scores = nn.functional.normalize(model.raw_features(test[0]).double(), dim=1) @ weight_Cl.T
    return 100 * float((scores.argmax(dim=1) == test[1]).double().mean())


def row(*cells: str | float | int) -> str:
    texts = [f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in cells]
    return f"| {' | '.join(texts)} |"


def main() -> None:
    torch.manual_seed(0)
    print("| features | cut-off | rank | ‖W‖ / ‖W_ref‖ | test accuracy | path |\n|---|---|---|---|---|---|")
    dims = (64, 256, 1024, 2048) if "--large" in sys.argv[1:] else (64, 256)
    for case in [*dependent_cases(), *regular_cases(dims)]:
        print("\n".join(compare(case)), flush=True)


if __name__ == "__main__":
    main()
