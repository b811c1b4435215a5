"""Groups: the runs of one experiment over its seeds, with a name for every stage."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from spherefed.experiment import fields_after_training
from spherefed.report.method_names import (
    base_name,
    distinguish,
    is_one_shot,
    is_plain,
    is_spherefed,
    personal_name,
    stage_names,
)
from spherefed.report.run_files import CALIBRATED, TRAINED, Run
from spherefed.schema import differences

PERSONAL = "personal"
"""The label of the clients' personal models, beside those of the two stages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """The runs of one experiment, in the order of their seeds."""

    experiment: Mapping[str, Any]
    """Without the seed."""
    runs: tuple[Run, ...]
    labels: Mapping[str, str]
    """The name of the group at each stage."""

    @property
    def folder(self) -> str:
        """The folder that the runs have in common, or else that of the first."""
        names = [run.name for run in self.runs]
        return names[0] if len(names) == 1 else os.path.commonpath(names) or names[0]

    @property
    def name(self) -> str:
        """The name of the whole group: that of its last stage."""
        if any(run.personal is not None for run in self.runs):
            return self.labels[PERSONAL]
        calibrates = self.experiment.get("calibration") is not None
        return self.labels[CALIBRATED if calibrates else TRAINED]


def group_runs(runs: Iterable[Run]) -> tuple[tuple[Group, ...], tuple[str, ...]]:
    """Group runs by experiment without seed, base methods first; return a note for each seed that was run twice.

    Each seed counts once: a repeated run must not narrow an interval.
    """
    experiments: list[dict[str, Any]] = []
    members: list[dict[int, Run]] = []
    notes = []
    for run in runs:
        experiment = {name: value for name, value in run.experiment.items() if name != "seed"}
        index = next((i for i, known in enumerate(experiments) if not differences(known, experiment)), None)
        if index is None:
            index = len(experiments)
            experiments.append(experiment)
            members.append({})
        first = members[index].setdefault(run.seed, run)
        if first is not run:
            same = "the same weights" if first.weights_sha256 == run.weights_sha256 else "other weights"
            notes.append(f"{run.name} repeats {first.name} (same experiment and seed, {same}) and was not counted.")
    order = sorted(range(len(experiments)), key=lambda i: (*_rank(experiments[i]), i))
    groups = [
        Group(experiment=experiments[i], labels={}, runs=tuple(run for _, run in sorted(members[i].items())))
        for i in order
    ]
    labels = labels_of(groups)
    return tuple(replace(group, labels=label) for group, label in zip(groups, labels, strict=True)), tuple(notes)


def training_part(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """The experiment up to its last round, by the rule of `Experiment.training_part`."""
    return {**experiment, **dict.fromkeys(fields_after_training(experiment.get("calibrate_every")))}


def _rank(experiment: Mapping[str, Any]) -> tuple[int, int, str]:
    """Sort key: base methods, then overlays, SphereFed last; FedAvg before the other algorithms."""
    base = base_name(experiment)
    overlay = 0 if is_plain(experiment) else 2 if is_spherefed(experiment) else 1
    if is_one_shot(experiment):
        return 3, 0, base
    return overlay, int(base != "FedAvg"), base


def labels_of(groups: Sequence[Group]) -> list[dict[str, str]]:
    """The names of each group by stage; a name that several groups share gets their differences or folders appended."""
    experiments = [group.experiment for group in groups]
    labels: list[dict[str, str]] = [{} for _ in experiments]
    names = [(*stage_names(experiment), personal_name(experiment)) for experiment in experiments]
    for index, stage in enumerate((TRAINED, CALIBRATED, PERSONAL)):
        for name in {each[index] for each in names}:
            members = [i for i, each in enumerate(names) if each[index] == name]
            # As trained, experiments that differ only in their calibration are one and the same.
            plain = [training_part(experiments[i]) if stage == TRAINED else experiments[i] for i in members]
            first = [i for i in range(len(plain)) if plain[i] not in plain[:i]]
            unique = [plain[i] for i in first]
            unique_names = distinguish(name, unique, [groups[members[i]].folder for i in first])
            for i, experiment in zip(members, plain, strict=True):
                labels[i][stage] = unique_names[unique.index(experiment)]
    return labels
