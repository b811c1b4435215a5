"""Diagnostics of a finished run, for its report: answers by true class, and the eigenvalues of V.

They are computed once, when the run is finished. Counts are small (C² numbers), and so is the spectrum (l numbers).
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from spherefed.calibration.ffc import Statistics
from spherefed.files import tensors_to_bytes
from spherefed.tensors import Tensors, add_prefix, one_thread

DIAGNOSTICS = "diagnostics.safetensors"
CONFUSION, SPECTRUM = "confusion", "spectrum"
MAX_SPECTRUM = 2048
"""Largest feature dimension whose spectrum is computed: the time grows with its cube, and takes seconds here."""


def diagnostics_files(confusion: Mapping[str, Tensor], total: Tensors) -> dict[str, bytes]:
    """The file to write, by its name; nothing if there is nothing to say.

    `confusion` has the test examples by true class (row) and answer (column) of each stage; `total` are the summed
    statistics of the calibration.
    """
    tensors = add_prefix(CONFUSION, {stage: counts.to(torch.int32) for stage, counts in confusion.items()})
    spectrum = spectrum_of(total)
    if spectrum is not None:
        tensors[SPECTRUM] = spectrum
    return {DIAGNOSTICS: tensors_to_bytes(tensors, {})} if tensors else {}


def spectrum_of(total: Tensors) -> Tensor | None:
    """The eigenvalues of V, ascending, (l,) float64; None if these are not FFC's statistics, or if l is large."""
    if total.keys() != {"counts", "gram", "cross"} or len(total["cross"]) > MAX_SPECTRUM:
        return None
    counts = total["counts"]
    gram = Statistics(int(counts[0]), int(counts[1]), total["gram"], total["cross"]).gram()
    with one_thread():
        values: Tensor = torch.linalg.eigvalsh(gram)
        return values.cpu()
