"""Floating-point operations of the classifier over a whole run, all clients and the server (Table 1).

As in the paper, the forward pass of the head is not counted, because it is the same for all methods. A multiplication
and an addition are two operations, except in the training of the head: the paper's numbers correspond to three
operations per weight, example and pass.
"""

from spherefed.costs.setting import Setting


def fedavg_flops(setting: Setting) -> int:
    """Gradient and update of the head in every local pass: 3 l C · N E T. The server's average is 10⁻⁵ of it.

    >>> from spherefed.costs.setting import TABLE_1
    >>> fedavg_flops(TABLE_1) / 1e9
    19200.0
    """
    passes = setting.num_examples * setting.epochs * setting.rounds
    return 3 * setting.dim * setting.num_classes * passes


def head_training_flops(setting: Setting) -> int:
    """What freezing the head saves, counted by operation: 2 l C per example and pass, 6 l C per step.

    The first is the weight gradient, the second weight decay, momentum and update with two operations per weight each.
    Deviation: the paper's numbers need 3 l C per example and pass, as if the update were made for every example.
    """
    passes = setting.num_examples * setting.epochs * setting.rounds
    steps_per_epoch = setting.num_clients * -(-setting.client_examples // setting.batch_size)
    steps = steps_per_epoch * setting.epochs * setting.rounds
    return _sgd_flops(setting, passes, steps)


def _sgd_flops(setting: Setting, passes: int, steps: int) -> int:
    """Training of the head by operation: l C · (2 · examples + 6 · steps)."""
    return setting.dim * setting.num_classes * (2 * passes + 6 * steps)


def ffc_flops(setting: Setting) -> int:
    """Eq. 9 on all clients: 2 N l (l + C). The paper's sum excludes the solution, `ffc_solve_flops`."""
    return 2 * setting.num_examples * setting.dim * (setting.dim + setting.num_classes)


def ffc_solve_flops(setting: Setting) -> int:
    """Eq. 12 on the server: l³/3 for the Cholesky factor, 2 l² C for the two triangular solves."""
    return setting.dim**3 // 3 + 2 * setting.dim**2 * setting.num_classes


def ccvr_flops(setting: Setting) -> int:
    """FedAvg, plus moments on the clients, plus sampling and refit on the server."""
    refit = setting.refit_epochs * ccvr_refit_epoch_flops(setting)
    return fedavg_flops(setting) + ccvr_moments_flops(setting) + ccvr_sampling_flops(setting) + refit


def ccvr_operations(setting: Setting) -> int:
    """The same, with the head's training on the clients and in the refit counted by operation.

    Unstated in the paper: the refit's batch size and optimizer. Here: those of local training.
    """
    virtual = setting.num_virtual * setting.num_classes
    steps = setting.refit_epochs * -(-virtual // setting.batch_size)
    refit = _sgd_flops(setting, setting.refit_epochs * virtual, steps)
    return head_training_flops(setting) + ccvr_moments_flops(setting) + ccvr_sampling_flops(setting) + refit


def ccvr_moments_flops(setting: Setting) -> int:
    """Σzzᵀ on all clients: 2 N l²."""
    return 2 * setting.num_examples * setting.dim**2


def ccvr_sampling_flops(setting: Setting) -> int:
    """C matrix factorizations of l³/3, and 2 l² for each of the M_c · C virtual features."""
    dim, C = setting.dim, setting.num_classes
    return C * dim**3 // 3 + 2 * setting.num_virtual * C * dim**2


def ccvr_refit_epoch_flops(setting: Setting) -> int:
    """One pass over the virtual features: 3 l C · M_c C."""
    return 3 * setting.dim * setting.num_classes * setting.num_virtual * setting.num_classes
