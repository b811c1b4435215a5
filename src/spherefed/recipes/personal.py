"""The columns of Table 8: personalised methods by name, as changes of an experiment, under the protocol of App. B."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from spherefed.algorithms import fedavg, fedrep, lg_fedavg
from spherefed.calibration import Ffc
from spherefed.experiment import Experiment
from spherefed.personalization import BlendedFfc, FineTune, LocalFfc
from spherefed.recipes.methods import Settings, plain, tuned_by, with_babu, with_spherefed

HELD_OUT = 0.15
"""App. B: the part of each client's own data on which its model is tested."""


def with_fine_tuning(experiment: Experiment) -> Experiment:
    """FedAvg, then everything trained on the client's own data."""
    # Unstated in the paper: which part, for how long and how fast. The whole model at the first round's rate.
    return replace(plain(experiment), personalization=FineTune(part="all", lr=experiment.local.lr))


def with_local_encoders(experiment: Experiment) -> Experiment:
    """LG-FedAvg (Liang et al. 2020): the head is averaged, encoders stay with their clients."""
    return replace(plain(experiment), algorithm=lg_fedavg())


def with_local_heads(experiment: Experiment) -> Experiment:
    """FedRep (Collins et al. 2021): the encoder is averaged, heads stay with their clients."""
    # Unstated in the paper: the epochs of the two phases. As many for the head as for the encoder.
    local = replace(experiment.local, head_epochs=experiment.local.epochs)
    return replace(plain(experiment), algorithm=fedrep(), local=local)


def with_personal_babu(experiment: Experiment) -> Experiment:
    """BABU (Oh et al. 2021): a random head that only the client's own fine-tuning trains, with all the rest."""
    return replace(with_babu(experiment), personalization=FineTune(part="all", lr=experiment.local.lr))


def with_local_ffc(experiment: Experiment) -> Experiment:
    """SphereFed, "Ours (FFC)": Eq. 7 on the client's own data over the global encoder; no global FFC."""
    return replace(_sphere(experiment), personalization=LocalFfc())


def with_local_sgd(experiment: Experiment) -> Experiment:
    """SphereFed, "Ours (SGD)": the head trained on the client's own data, the encoder kept."""
    # On unit features the MSE's gradient is small, (2/C)(Wz − e_y)zᵀ: its rate is far above a cross-entropy's.
    return replace(_sphere(experiment), personalization=FineTune(part="head", lr=1.0))


def with_blended_ffc(experiment: Experiment) -> Experiment:
    """Ours beyond the paper: (V_k + γV + λI)⁻¹(U_k + γU), which needs the global FFC's sums."""
    return replace(_sphere(experiment), calibration=Ffc(), personalization=BlendedFfc())


PERSONAL: Mapping[str, Callable[[Experiment], Experiment]] = {
    "fedavg+fine-tuning": with_fine_tuning,
    "lg-fedavg": with_local_encoders,
    "fedrep": with_local_heads,
    "babu+fine-tuning": with_personal_babu,
    "spherefed+ffc": with_local_ffc,
    "spherefed+sgd": with_local_sgd,
    "spherefed+blended": with_blended_ffc,
}

TUNED_AS = {
    "babu+fine-tuning": "fedavg+babu",
    "spherefed+ffc": "fedavg+spherefed",
    "spherefed+sgd": "fedavg+spherefed",
    "spherefed+blended": "fedavg+spherefed",
}
"""Whose tuned values a method starts from; the others start from FedAvg's."""


def personal_methods(experiment: Experiment, tuned: Settings) -> dict[str, Experiment]:
    """Every column by name, on pooled data of which each client holds out its part (App. B)."""
    data = replace(experiment.data, pooled=True, held_out=experiment.data.held_out or HELD_OUT)
    on = replace(experiment, data=data, algorithm=fedavg(), personalization=None)
    built = {}
    for name, method in PERSONAL.items():
        built[name] = method(tuned_by(on, tuned.get(TUNED_AS.get(name, "fedavg"), {})))
    return built


def _sphere(experiment: Experiment) -> Experiment:
    return replace(with_spherefed(experiment), calibration=None)
