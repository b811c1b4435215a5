"""The personalized methods of Table 8 by name: functions that change an experiment. The protocol is that of App. B."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from spherefed.calibration import Ffc
from spherefed.client.personalization import BlendedFfc, FineTune, LocalFfc
from spherefed.client.training import LocalTraining
from spherefed.errors import ConfigError
from spherefed.experiment import Experiment
from spherefed.recipes.methods import Settings, plain, with_babu, with_spherefed, with_tuned
from spherefed.server.algorithms import fedavg, fedrep, lg_fedavg

HELD_OUT = 0.15
"""App. B: the fraction of each client's data on which its model is tested."""


def with_fine_tuning(experiment: Experiment) -> Experiment:
    """FedAvg, then the whole model is fine-tuned on the client's own data."""
    # Unstated in the paper: part of the model, epochs and learning rate. Here: all, with the rate of the first round.
    return replace(plain(experiment), personalization=FineTune(part="all", lr=_training(experiment).lr))


def with_plain_local_ffc(experiment: Experiment) -> Experiment:
    """Not in the paper: FedAvg, then Eq. 7 as for SphereFed, to tell FFC's gain from that of SphereFed's training."""
    return replace(plain(experiment), personalization=LocalFfc())


def with_local_encoders(experiment: Experiment) -> Experiment:
    """LG-FedAvg (Liang et al. 2020): the head is averaged, each client keeps its own encoder."""
    return replace(plain(experiment), algorithm=lg_fedavg())


def with_local_heads(experiment: Experiment) -> Experiment:
    """FedRep (Collins et al. 2021): the encoder is averaged, each client keeps its own head."""
    # Unstated in the paper: the epochs of the two phases. Here: equally many for head and encoder.
    local = _training(experiment)
    local = replace(local, head_epochs=local.epochs)
    return replace(plain(experiment), algorithm=fedrep(), local=local)


def with_personal_babu(experiment: Experiment) -> Experiment:
    """BABU (Oh et al. 2021): a fixed random head in training, then each client fine-tunes the whole model."""
    return replace(with_babu(experiment), personalization=FineTune(part="all", lr=_training(experiment).lr))


def with_local_ffc(experiment: Experiment) -> Experiment:
    """SphereFed, "Ours (FFC)": Eq. 7 on the client's own data with the global encoder; no global FFC."""
    return replace(_spherefed_without_ffc(experiment), personalization=LocalFfc())


def with_local_sgd(experiment: Experiment) -> Experiment:
    """SphereFed, "Ours (SGD)": the head is trained on the client's own data, the encoder is fixed."""
    # The gradient of the MSE on unit features, (2/C)(Wz − e_y)zᵀ, is small: it needs a larger rate than cross-entropy.
    return replace(_spherefed_without_ffc(experiment), personalization=FineTune(part="head", lr=1.0))


def with_blended_ffc(experiment: Experiment) -> Experiment:
    """Not in the paper: (V_k + γV + λI)⁻¹(U_k + γU), which needs the sums V and U of a global FFC."""
    return replace(_spherefed_without_ffc(experiment), calibration=Ffc(), personalization=BlendedFfc())


PERSONAL: Mapping[str, Callable[[Experiment], Experiment]] = {
    "fedavg+fine-tuning": with_fine_tuning,
    "fedavg+local-ffc": with_plain_local_ffc,
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
"""The method whose tuned hyper-parameters a method uses; the others use those of FedAvg."""


def personal_methods(experiment: Experiment, tuned: Settings) -> dict[str, Experiment]:
    """All methods of Table 8 by name, on pooled data, of which each client holds out a fraction (App. B)."""
    data = replace(experiment.data, pooled=True, held_out=experiment.data.held_out or HELD_OUT)
    base_experiment = replace(experiment, data=data, algorithm=fedavg(), personalization=None)
    built = {}
    for name, method in PERSONAL.items():
        built[name] = method(with_tuned(base_experiment, tuned.get(TUNED_AS.get(name, "fedavg"), {})))
    return built


def _training(experiment: Experiment) -> LocalTraining:
    if experiment.local is None:
        raise ConfigError(f"personalized methods are trained; {experiment.name!r} has rounds = 0 and no local")
    return experiment.local


def _spherefed_without_ffc(experiment: Experiment) -> Experiment:
    return replace(with_spherefed(experiment), calibration=None)
