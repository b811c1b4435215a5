"""Learning rates of a scale: equally large grids on a validation split, with seeds of their own, resumable.

What to try next follows from the records alone, so that an interrupted search continues where it was. Every method is
judged by its final model. The best value of a grid must lie inside it; a grid that has to grow makes the others grow.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spherefed.calibration import Calibration, Ffc
from spherefed.errors import ConfigError
from spherefed.experiment import Experiment, with_settings
from spherefed.recipes.personal import HELD_OUT
from spherefed.reproduce.accuracy_tables import CLIENTS, hundred_clients
from spherefed.reproduce.campaign import plan_campaign, run_campaign
from spherefed.reproduce.item import Cell, Item, Metric
from spherefed.reproduce.methods import LOSSES, SWITCHES, Change, ablation, babu_of, base_of, ours_of, unchanged
from spherefed.reproduce.personal import TUNED_FIELDS, TUNED_RIDGES, personal_experiments
from spherefed.reproduce.regimes import ROUNDS, frozen_features, more_rounds
from spherefed.reproduce.scales import START_REFIT_RATE, START_REFIT_RATE_ON_SPHERE, START_TEMPERATURE, TENTH, Scale
from spherefed.reproduce.store import Store
from spherefed.reproduce.summary import value_of
from spherefed.runs.jobs import JobRound, Watch
from spherefed.runs.runner import Engine
from spherefed.runs.tuning import FIRST_SEED, MAX_POINTS, Search, final_stage

FACTORS = (0.5, 1.0, 2.0)
"""A grid starts with these multiples of the scale's rate."""
FACTORS_OF: Mapping[str, Sequence[float]] = {
    "personalization.lr": (0.25, 1.0, 4.0),
    "personalization.ridge": (0.1, 1.0, 10.0),
}
"""Fields whose grids are wider: trying a value needs no training."""
STARTS_OF_HEADS = {"spherefed+sgd": 8.0} | dict.fromkeys(TUNED_RIDGES, 1.0)
"""Where the grids of methods begin that train or compute a head on clients' own data (Table 8)."""
PATH = "local.lr"
REFIT_PATH = "calibration.refit.lr"
TEMPERATURE_PATH = "loss.scale"
GROUPS: Mapping[str, tuple[str, ...]] = {
    "tuning": ("fedavg", "fedavg+spherefed", "fedavg+babu"),
    "tuning-ablations": tuple(
        f"fedavg+{loss.lower()}{suffix}"
        for loss in LOSSES
        for _, _, suffix in SWITCHES.values()
        if f"{loss}{suffix}" not in ("CE", "CE+fix-r", "MSE+fix-ou+norm")  # methods of the first group
    ),
    # CCVR's refit, without and with Tukey's transform of the virtual features; of the features of FedAvg, of
    # SphereFed, whose features have unit length (Table 4), and of FedAvg with three times as many rounds.
    "tuning-ccvr": ("fedavg+ccvr", "fedavg+ccvr-tukey"),
    "tuning-ccvr-sphere": ("fedavg+spherefed+ccvr", "fedavg+spherefed+ccvr-tukey"),
    "tuning-ccvr-rounds": (f"fedavg+ccvr{ROUNDS}", f"fedavg+ccvr-tukey{ROUNDS}"),
    # FedAvg's rate judged after FFC, as SphereFed's is.
    "tuning-ffc": ("fedavg+ffc", f"fedavg+ffc{ROUNDS}"),
    # τ of cross-entropy on unit features with a fixed head, at the rate that `tuning-ablations` chose.
    "tuning-temperature": ("fedavg+temperature",),
    # Three times as many rounds, which are not in the paper.
    "tuning-rounds": (f"fedavg+spherefed{ROUNDS}", f"fedavg{ROUNDS}"),
    # 100 clients (Table 6).
    "tuning-clients": tuple(f"{method}{CLIENTS}" for method in ("fedavg", "fedavg+spherefed", "fedavg+babu")),
    # Table 8: what clients do on their own data, by the accuracy of their own models.
    "tuning-personal": tuple(TUNED_FIELDS),
    # Layers on a frozen encoder, which are not in the paper.
    "tuning-frozen": ("fedavg+frozen", "fedavg+spherefed+frozen"),
}
"""Methods whose grids are kept equally large, by the name on the command line."""
SETTINGS: Mapping[str, Change] = {"+frozen": frozen_features, ROUNDS: more_rounds, CLIENTS: hundred_clients}
"""What the end of a method's name changes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RateSearch:
    """A search for the learning rates of some methods."""

    scale: Scale
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    store: Store

    def run(self, runs: Path, *, engine: Engine, processes: int = 1, watch: Watch | None = None) -> Iterator[JobRound]:
        """Try values until every method has its best one inside its grid."""
        while wanted := self.wanted():
            campaign = plan_campaign([wanted], self.seeds, self.store, runs)
            yield from run_campaign(campaign, self.store, engine=engine, processes=processes, watch=watch)

    def wanted(self) -> Item | None:
        """The experiments to try next; None if the search is over."""
        searches = self.searches()
        cells = [
            self._cell(search, value)
            for search in searches
            for value in self._start(search.method)
            if value not in search.scores
        ]
        if not cells:
            beyond = [(s, s.next_value()) for s in searches if len(s.scores) < MAX_POINTS]
            cells = [self._cell(search, value) for search, value in beyond if value is not None]
        if not cells:
            largest = max(len(search.scores) for search in searches)
            cells = [self._cell(s, s.neighbour()) for s in searches if len(s.scores) < largest]
        return Item(name="tuning", title="", claim="", cells=tuple(cells)) if cells else None

    def searches(self) -> list[Search]:
        """Every method with what was tried so far, in the order in which values are wanted.

        A record that another search has left beside a grid does not make it larger.
        """
        searches = [_search(self.scale, method) for method in self.methods]
        for search in searches:
            self._add(search, self._start(search.method))
        begun = [search for search in searches if search.scores.keys() >= {*self._start(search.method)}]
        grown = True
        while grown:
            largest = max((len(search.scores) for search in begun), default=0)
            grown = any(self._add(search, _after(search, largest)) for search in begun)
        return searches

    def _add(self, search: Search, values: Sequence[float]) -> bool:
        """Add the values that have a record; whether there was one."""
        found = {value: scores for value in values if (scores := self._scores(search, value)) is not None}
        search.scores |= found
        return bool(found)

    def _start(self, method: str) -> list[float]:
        refit = START_REFIT_RATE_ON_SPHERE if "spherefed" in method else START_REFIT_RATE
        path, starts = path_of(method), {REFIT_PATH: refit, TEMPERATURE_PATH: START_TEMPERATURE}
        known = self.scale.start_rates.get(method, self.scale.rate(method.removesuffix(_setting_of(method)), TENTH))
        rate = starts.get(path, STARTS_OF_HEADS.get(method, known))
        return [float(f"{rate * factor:.2g}") for factor in FACTORS_OF.get(path, FACTORS)]

    def _scores(self, search: Search, value: float) -> dict[str, float] | None:
        """Mean validation accuracy at each stage; a diverged run counts as 0; None if a seed is missing."""
        experiment = _with_value(search, value)
        records = [self.store.record(experiment, seed) for seed in self.seeds]
        if any(record is None for record in records):
            return None
        stages: tuple[Metric, ...] = ("trained",) if experiment.calibration is None else ("trained", "calibrated")
        if search.stage == "personal":
            stages = ("personal",)
        return {
            stage: round(statistics.fmean((value_of(r, stage) or 0.0) / 100 for r in records if r is not None), 6)
            for stage in stages
        }

    def _cell(self, search: Search, value: float) -> Cell:
        return Cell(row=search.method, column=f"{value:g}", experiment=_with_value(search, value))

    def table(self) -> dict[str, Any]:
        """What was tried, what it gave and what was chosen, for a file."""
        methods = {}
        for search in (s for s in self.searches() if len(s.scores) > 2):
            methods[search.method] = {
                "chosen": {search.path: search.best},
                "judged_by": search.stage,
                "on_edge": search.next_value() is not None,
                "tried": [{search.path: value, **search.scores[value]} for value in sorted(search.scores)],
            }
        split = self.scale.tuning_data
        return {
            "protocol": self.scale.description,
            "examples": split.examples,
            "validation": split.validation,
            "seeds": list(self.seeds),
            "methods": methods,
        }


def rate_search(name: str, scale: Scale, num_seeds: int, store: Store) -> RateSearch:
    """The search of this name, with seeds that no reported result uses."""
    if name not in GROUPS:
        raise ConfigError(f"unknown search {name!r}; allowed: {', '.join(GROUPS)}")
    seeds: Sequence[int] = range(FIRST_SEED, FIRST_SEED + num_seeds)
    return RateSearch(scale=scale, methods=GROUPS[name], seeds=tuple(seeds), store=store)


def tuning_experiment(scale: Scale, method: str) -> Experiment:
    """A method at α = 0.1 on the validation split; FFC follows where the method has it.

    Methods of Table 8 are judged on what clients hold out of the training examples of that split.
    """
    if method in TUNED_FIELDS:
        personal = personal_experiments(replace(scale, personal={}), TENTH)[method]
        held_out = replace(scale.tuning_data, held_out=HELD_OUT)
        return replace(personal, data=held_out, evaluate_every=personal.rounds)
    scale = replace(scale, temperature=START_TEMPERATURE)  # rates are chosen first
    built = {
        "fedavg": base_of(scale, "fedavg", TENTH),
        "fedavg+babu": babu_of(scale, "fedavg", TENTH),
        "fedavg+spherefed": ours_of(scale, "fedavg", TENTH),
    }
    for loss in LOSSES:
        for switch, (_, _, suffix) in SWITCHES.items():
            built.setdefault(f"fedavg+{loss.lower()}{suffix}", ablation(scale, TENTH, loss, switch, calibrated=False))
    built["fedavg+temperature"] = built["fedavg+ce+fix-ou+norm"]
    setting = _setting_of(method)
    name, calibration = _calibration_of(scale, method.removesuffix(setting))
    experiment = built[name]
    assert experiment is not None, "every scale has α = 0.1"
    experiment = SETTINGS.get(setting, unchanged)(replace(experiment, data=scale.tuning_data))
    if calibration is not None:
        rate = scale.rates.get(name + setting, experiment.local_training.lr)
        experiment = replace(experiment, calibration=calibration).with_lr(rate)
    return replace(experiment, evaluate_every=experiment.rounds)


def _setting_of(method: str) -> str:
    """The end of the method's name that stands for a changed setting; empty if there is none."""
    return next((setting for setting in SETTINGS if method.endswith(setting)), "")


def _calibration_of(scale: Scale, method: str) -> tuple[str, Calibration | None]:
    """What is trained, and the calibration after it, if the name of the method ends with one."""
    name, _, last = method.rpartition("+")
    ccvr = scale.ccvr_on_sphere if "spherefed" in name else scale.ccvr_tuned
    calibrations: Mapping[str, Calibration] = {
        "ccvr": replace(ccvr, tukey=1.0),
        "ccvr-tukey": replace(ccvr, tukey=0.5),
        "ffc": Ffc(),
    }
    return (name, calibrations[last]) if last in calibrations else (method, None)


def _after(search: Search, largest: int) -> list[float]:
    """The value to try next: beyond the edge on which the best lies, or to make the grid as large as the largest."""
    if (value := search.next_value()) is not None:
        return [value]
    return [search.neighbour()] if len(search.scores) < largest else []


def _search(scale: Scale, method: str) -> Search:
    """A method with nothing tried so far."""
    experiment = tuning_experiment(scale, method)
    return Search(
        method, experiment, path_of(method), "personal" if method in TUNED_FIELDS else final_stage(experiment)
    )


def path_of(method: str) -> str:
    """The field that is tuned."""
    if method in TUNED_FIELDS:
        return TUNED_FIELDS[method]
    if method.endswith("+temperature"):
        return TEMPERATURE_PATH
    return REFIT_PATH if "ccvr" in method else PATH


def _with_value(search: Search, value: float) -> Experiment:
    return with_settings(search.experiment, [f"{search.path}={value!r}"])
