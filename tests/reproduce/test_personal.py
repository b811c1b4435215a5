"""Table 8: which methods are tuned, on which examples, and where the tuned values go."""

from dataclasses import replace
from pathlib import Path

from spherefed.client.personalization import FineTune
from spherefed.experiment import with_settings
from spherefed.reproduce.catalog import find_items, find_scale
from spherefed.reproduce.personal import TABLE_8, TUNED_FIELDS, personal_experiments
from spherefed.reproduce.rates import rate_search
from spherefed.reproduce.store import Store
from spherefed.runs.tuning import FIRST_SEED
from support.records import made_up_record


def test_table_8_uses_what_was_tuned_for_it_and_has_rows_with_a_tuned_ridge_only_then() -> None:
    scale = find_scale("tiny")
    (without,) = find_items("table8", scale)
    values = dict(zip(TUNED_FIELDS, (0.11, 0.12, 0.13, 0.14, 0.15), strict=True))
    tuned = {name: {TUNED_FIELDS[name]: value} for name, value in values.items()}
    (item,) = find_items("table8", replace(scale, personal=tuned))
    ridge_rows = {"FedAvg + local FFC, λ tuned": "fedavg+local-ffc+ridge", "Ours (FFC), λ tuned": "spherefed+ffc+ridge"}
    assert {cell.row for cell in item.cells} - {cell.row for cell in without.cells} == set(ridge_rows)
    rows = {row: name for name, (row, _, _) in TABLE_8.items()} | ridge_rows
    for cell in item.cells:
        experiment, name = cell.experiment, rows.get(cell.row)
        assert experiment is not None
        lr, personalization = experiment.local_training.lr, experiment.personalization
        ridge = getattr(personalization, "ridge", None)
        if name in ("lg-fedavg", "fedrep"):
            assert (lr, personalization) == (scale.rates["fedavg"], None)
        elif name in ridge_rows.values():
            assert ridge == values[name]
        elif cell.row in ("Ours (FFC)", "FedAvg + local FFC"):
            assert ridge == 0.0
        else:
            assert isinstance(personalization, FineTune)
            assert personalization.lr == values[name or ""]
    assert len(item.trainings()) == len(without.trainings()) == 2 * 5  # what follows a training has none of its own


def test_table_8_is_tuned_on_what_clients_hold_out_of_the_tuning_data(tmp_path: Path) -> None:
    scale = replace(find_scale("laptop"), personal={})
    wanted = rate_search("tuning-personal", scale, 1, Store(tmp_path)).wanted()
    reported = personal_experiments(scale, "α = 0.1")
    assert wanted is not None
    assert len(wanted.cells) == 3 * len(TUNED_FIELDS)
    for cell in wanted.cells:
        field, tuned = TUNED_FIELDS[cell.row], cell.experiment
        assert tuned is not None
        assert tuned.data == replace(scale.tuning_data, held_out=0.15)
        own = with_settings(reported[cell.row], [f"{field}={cell.column}"])
        assert tuned == replace(own, data=tuned.data, evaluate_every=own.rounds)
    assert len(wanted.trainings()) == 3  # of FedAvg, BABU and SphereFed


def test_methods_of_table_8_are_judged_by_the_clients_own_models(tmp_path: Path) -> None:
    scale, store = find_scale("tiny"), Store(tmp_path)
    search = rate_search("tuning-personal", scale, 1, store)
    wanted = search.wanted()
    assert wanted is not None
    for cell in wanted.cells:
        assert cell.experiment is not None
        accuracy = 0.5 + (cell.column == "1") / 4  # the middle of the grids of λ
        record = made_up_record(90.0, 90.0) | {"personal": {"mean": accuracy, "std": 0.1}}
        store.add(cell.experiment.with_seed(FIRST_SEED), record, None)
    entry = search.table()["methods"]["spherefed+ffc+ridge"]
    assert (entry["chosen"], entry["judged_by"]) == ({"personalization.ridge": 1.0}, "personal")
    assert sorted(each["personal"] for each in entry["tried"]) == [0.5, 0.5, 0.75]
