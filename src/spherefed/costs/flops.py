"""Floating-point operations of the classifier over a whole run, all clients and the server (Table 1).

As in the paper the forward pass of the head is left out, because every method makes it. A multiplication and an
addition are two operations, except in training the head, which the paper's numbers count as three per weight, example
and pass.
"""

from spherefed.costs.setting import Setting


def fedavg_flops(setting: Setting) -> int:
    """Gradient and update of the head in every local pass: 3 l C · N E T; averaging on the server is 10⁻⁵ of it.

    >>> from spherefed.costs.setting import TABLE_1
    >>> fedavg_flops(TABLE_1) / 1e9
    19200.0
    """
    passes = setting.num_examples * setting.epochs * setting.rounds
    return 3 * setting.dim * setting.num_classes * passes


def ffc_flops(setting: Setting) -> int:
    """Eq. 9 on all clients: 2 N l (l + C). The paper's sum leaves out the solve, `ffc_solve_flops`."""
    return 2 * setting.num_examples * setting.dim * (setting.dim + setting.num_classes)


def ffc_solve_flops(setting: Setting) -> int:
    """Eq. 12 on the server: l³/3 for Cholesky's factor, 2 l² C for both substitutions."""
    return setting.dim**3 // 3 + 2 * setting.dim**2 * setting.num_classes


def ccvr_flops(setting: Setting) -> int:
    """FedAvg's, then moments on the clients, sampling and refitting on the server."""
    refit = setting.refit_epochs * ccvr_refit_epoch_flops(setting)
    return fedavg_flops(setting) + ccvr_moments_flops(setting) + ccvr_sampling_flops(setting) + refit


def ccvr_moments_flops(setting: Setting) -> int:
    """Σzzᵀ on all clients: 2 N l²."""
    return 2 * setting.num_examples * setting.dim**2


def ccvr_sampling_flops(setting: Setting) -> int:
    """C factors of l³/3, and 2 l² for each of the M_c · C virtual features."""
    dim, C = setting.dim, setting.num_classes
    return C * dim**3 // 3 + 2 * setting.num_virtual * C * dim**2


def ccvr_refit_epoch_flops(setting: Setting) -> int:
    """One pass over the virtual features: 3 l C · M_c C."""
    return 3 * setting.dim * setting.num_classes * setting.num_virtual * setting.num_classes
