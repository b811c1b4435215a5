"""Items against the paper's own arithmetic, the rule of verdicts against printed t-tables, and what trainings share."""

import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from spherefed.calibration import Ccvr, Ffc
from spherefed.client.evaluation import GLOBAL_TEST
from spherefed.client.training import LocalTraining
from spherefed.data.partition import Dirichlet, Iid, Shards
from spherefed.engines.activity import Activity
from spherefed.errors import ConfigError, RunError
from spherefed.experiment import Experiment, experiment_from_mapping
from spherefed.nn.encoders import VGG13, MobileNetV2, ResNet18, SENet18
from spherefed.reproduce import catalog
from spherefed.reproduce.ablations import SECONDS
from spherefed.reproduce.accuracy_tables import TABLE_2
from spherefed.reproduce.alignment import class_alignment, class_mixing, feature_map
from spherefed.reproduce.campaign import plan_campaign, run_campaign
from spherefed.reproduce.catalog import ITEMS, find_items, find_scale, with_cells, without_missing_packages
from spherefed.reproduce.chart import item_figure
from spherefed.reproduce.headline import headline_columns, headline_page, write_headline
from spherefed.reproduce.item import Cell, Claim, Item
from spherefed.reproduce.judging import judge, judge_claim, quantity
from spherefed.reproduce.methods import BABU, CCVR, OURS, base_of
from spherefed.reproduce.page import claims_page, index_page, item_page, mean_text
from spherefed.reproduce.rates import rate_search
from spherefed.reproduce.scales import COLUMNS, SCALES
from spherefed.reproduce.store import Store, record_of_failure
from spherefed.reproduce.summary import summarize_item, value_of
from spherefed.reproduce.writing import write_claims, write_item
from spherefed.runs import local_only
from spherefed.runs.environment import NUMERICS_VERSION
from spherefed.runs.inspection import LocalFeatures
from spherefed.runs.local_only import is_trained_alone, local_only_accuracy, train_alone
from spherefed.runs.runner import Engine, run_to_end
from support.records import made_up_record

PRINTED_GAINS = {
    "fedavg": ((0.23, 0.36, 0.15, 1.46), (-0.02, 0.57, 1.01, -1.57), (1.72, 3.07, 2.62, 4.76)),
    "fedprox": ((0.12, 0.39, 0.46, 2.01), (1.47, 2.12, 2.27, 0.32), (3.22, 4.70, 3.56, 4.66)),
    "fednova": ((0.41, 1.12, 0.93, 0.49), (-0.09, 0.05, 1.75, 1.24), (3.38, 4.63, 5.34, 5.58)),
    "fedopt": ((0.08, 0.82, 0.47, 0.72), (0.38, 0.09, -0.71, 1.05), (3.26, 6.09, 5.15, 5.55)),
}
"""The arrows of Table 2 for CCVR, BABU and Ours."""
MISPRINTED = {("fedavg", OURS, 0), ("fedavg", OURS, 3), ("fedprox", CCVR, 0), ("fedprox", BABU, 3)}


@pytest.mark.parametrize("base", PRINTED_GAINS)
def test_the_numbers_of_table_2_differ_by_the_printed_gains(base: str) -> None:
    for row, gains in zip((CCVR, BABU, OURS), PRINTED_GAINS[base], strict=True):
        for column, gain in enumerate(gains):
            numbers = TABLE_2[base][column]
            agrees = abs(numbers[row] - numbers[""] - gain) < 0.006
            assert agrees != ((base, row, column) in MISPRINTED)


T_975 = {2: 12.7062, 3: 4.3027, 5: 2.7764}
"""Printed t-table, by number of seeds."""


@pytest.mark.parametrize("seeds", T_975)
def test_a_verdict_turns_where_the_interval_of_the_t_table_touches_zero(seeds: int) -> None:
    noise = [(-1) ** i * (i + 1.0) for i in range(seeds)]
    mean = sum(noise) / seeds
    deviation = (sum((x - mean) ** 2 for x in noise) / (seeds - 1)) ** 0.5
    half = T_975[seeds] * deviation / seeds**0.5
    above, below = ([x - mean + shift * half for x in noise] for shift in (1.001, 0.999))
    assert judge(above) == "holds"
    assert judge(below) == "not decided"
    assert judge([-x for x in above]) == "does not hold"
    assert judge(below, size=2.1 * half) == "does not hold"
    assert judge(above, size=100 * half) == "holds"
    assert judge(below, margin=2 * half) == "holds"
    assert judge(below, margin=1.9 * half) == "not decided"


def test_one_seed_decides_nothing() -> None:
    assert judge([5.0]) == "not decided"


def test_a_spread_is_the_largest_minus_the_smallest() -> None:
    claim = Claim(text="", plus=(("a", "1"), ("a", "2")), minus=(("b", "1"), ("b", "2")), measure="spread")
    assert quantity(claim, {("a", "1"): 3.0, ("a", "2"): 7.0, ("b", "1"): 5.0, ("b", "2"): 4.0}) == 3.0
    assert quantity(claim, {("a", "1"): 3.0}) is None


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", ITEMS)
def test_claims_and_differences_are_about_cells_that_exist(name: str, scale: str) -> None:
    (item,) = find_items(name, find_scale(scale))
    keys = [cell.key for cell in item.cells]
    assert len(set(keys)) == len(keys)
    assert {key for claim in item.claims for key in (*claim.plus, *claim.minus)} <= set(keys)
    assert {cell.base for cell in item.cells if cell.base} <= set(keys)
    assert item.computed is not None or item.claims


def test_the_sizes_of_claims_are_those_of_the_printed_cells() -> None:
    checked = 0
    for item in find_items("all", find_scale("paper")):
        printed = {cell.key: cell.paper for cell in item.cells}
        for claim in item.claims:
            terms = [printed[key] for key in claim.plus] + [printed[key] for key in claim.minus]
            if claim.measure != "sum" or claim.paper is None or None in terms:
                continue
            signs = [1.0] * len(claim.plus) + [-1.0] * len(claim.minus)
            size = sum(sign * term for sign, term in zip(signs, terms, strict=True) if term is not None)
            assert claim.paper == pytest.approx(size, abs=0.006), claim.text
            checked += 1
    assert checked > 150


@pytest.mark.parametrize("scale", SCALES)
def test_a_growing_gain_is_judged_from_half_to_a_tenth_where_the_paper_contradicts_itself(scale: str) -> None:
    (item,) = find_items("table2", find_scale(scale))
    sizes = {claim.text: claim.paper for claim in item.claims if "gains more at α = 0.1 than at α = 0.5" in claim.text}
    steps = {base: gains[2][2] - gains[2][1] for base, gains in PRINTED_GAINS.items()}
    assert list(sizes.values()) == pytest.approx(list(steps.values()), abs=0.006)
    assert [size > 0 for size in steps.values()] == [False, False, True, False]


def test_up_to_6_percent_is_the_largest_gain_of_table_2() -> None:
    (item,) = find_items("table2", find_scale("paper"))
    (claim,) = [claim for claim in item.claims if claim.text.startswith('"up to 6 %"')]
    printed = {cell.key: cell.paper or 0 for cell in item.cells}
    gains = [
        printed[f"{base} + SphereFed", column] - printed[base, column]
        for base in ("FedAvg", "FedProx", "FedNova", "FedOpt")
        for column in COLUMNS
    ]
    assert claim.paper == max(gains)
    assert printed[claim.plus[0]] - printed[claim.minus[0]] == max(gains)
    assert claim.least == 5.5


def test_items_by_formula_say_where_the_accuracies_of_the_paper_are() -> None:
    table1, fig5 = find_items("table1,fig5", find_scale("paper"))
    numbers = TABLE_2["fedavg"][1]
    (said,) = [line for line in table1.deviations if "column of accuracies" in line]
    assert "item `table2`" in said
    assert all(f"{numbers[row]:.2f}" in said for row in ("", CCVR, OURS))
    assert any("Fig. 5e" in line and "item `table2`" in line for line in fig5.deviations)


def test_figure_5_names_its_assumptions_about_zeros_and_the_batch_size() -> None:
    (item,) = find_items("fig5", find_scale("paper"))
    assert item.computed is not None
    named = {row[2] for row in item.computed()["details"]["rows"]}
    said = " ".join(item.deviations)
    assert "operations only, zeros skipped" in named
    assert '"zeros skipped"' in said
    assert "array only; B = 1 (contradicts the paper)" in named
    assert "Lines with B = 1 contradict it" in said


def test_a_claim_that_a_training_diverges_counts_the_seeds_in_which_it_does() -> None:
    claim = Claim(text="", plus=(("a", ""),), measure="diverged", paper=1.0)
    assert quantity(claim, {}, [("a", "")]) == 1.0
    assert quantity(claim, {("a", ""): 3.0}) == 0.0
    assert quantity(claim, {}) is None
    assert judge_claim(claim, [1.0], has_diverged=False) == "not decided"


@pytest.mark.parametrize("balanced", [False, True])
def test_figures_2_and_3_and_table_4_have_the_networks_and_lengths_of_the_paper(balanced: bool) -> None:
    scale = find_scale("paper", balanced=balanced)
    fig2, fig3, table4 = find_items("fig2,fig3,table4", scale)
    assert {(e.model.encoder, e.rounds) for e in fig2.experiments()} == {(ResNet18(), 50)}
    central = next(cell.experiment for cell in fig3.cells if cell.row == "centralised training")
    assert central is not None
    assert central.rounds * central.local_training.epochs == 120
    (ours,) = {cell.experiment for cell in table4.cells if cell.key == ("FFC", "α = 0.1")}
    assert ours is not None
    assert ours.model.encoder == SENet18()


def test_the_paper_scale_has_the_networks_and_rates_of_table_16() -> None:
    (item,) = find_items("table2", find_scale("paper"))
    cells = {cell.key: cell.experiment for cell in item.cells}
    expected = {
        ("FedAvg", "α = 0.1"): (MobileNetV2(), 0.1),
        ("FedAvg + SphereFed", "α = 0.1"): (MobileNetV2(), 1.0),
        ("FedAvg + SphereFed", "α = 0.5"): (MobileNetV2(), 0.5),
        ("FedAvg + BABU", "TinyImageNet"): (MobileNetV2(norm="group"), 0.01),
        ("FedProx + SphereFed", "IID"): (ResNet18(), 0.5),
        ("FedNova", "α = 0.5"): (VGG13(), 0.01),
        ("FedOpt + SphereFed", "α = 0.1"): (SENet18(), 0.5),
    }
    for key, (encoder, lr) in expected.items():
        experiment = cells[key]
        assert experiment is not None
        assert (experiment.model.encoder, experiment.local.lr) == (encoder, lr)
        assert (experiment.rounds, experiment.local.epochs, experiment.local.batch_size) == (100, 10, 64)
    ours, plain = cells["FedProx + SphereFed", "IID"], cells["FedProx", "IID"]
    assert ours is not None
    assert plain is not None
    assert (ours.algorithm.prox_mu, plain.algorithm.prox_mu) == (1e-4, 1e-3)
    assert plain.partition == Iid(clients=10)
    ccvr = cells["FedAvg + CCVR", "TinyImageNet"]
    assert ccvr is not None
    assert ccvr.calibration == Ccvr(num_virtual=1000)
    assert ccvr.partition == Dirichlet(alpha=0.5, clients=10)


def small_item() -> Item:
    (item,) = find_items("table9", find_scale("tiny"))
    return item


def test_calibrations_of_one_training_need_one_training(tmp_path: Path) -> None:
    campaign = plan_campaign([small_item()], [0, 1], Store(tmp_path / "results"), tmp_path / "runs")
    trained = [job for job in campaign.jobs if job.trained is None and not job.alone]
    assert len(trained) == 6  # FedAvg, a fixed random head and one client with all data, two seeds
    alone = [job for job in campaign.jobs if job.alone]
    assert campaign.jobs[-2:] == tuple(alone)
    assert [job.experiment.seed for job in alone] == [0, 1]
    assert campaign.num_rounds == (6 + 2) * 5
    (after, _) = [job for job in campaign.jobs if job.trained is not None]
    assert after.experiment.calibration == Ffc()
    assert after.trained in {job.out for job in trained}


def test_items_share_trainings_by_digest(tmp_path: Path) -> None:
    scale, store = find_scale("laptop"), Store(tmp_path)
    alone = plan_campaign(find_items("table2", scale), [0], store, tmp_path)
    both = plan_campaign(find_items("table2,fig2,table4,table9", scale), [0], store, tmp_path)
    assert alone.num_rounds == both.num_rounds > 0


def test_a_recorded_result_is_not_computed_again_unless_the_numerics_changed(tmp_path: Path) -> None:
    store, item = Store(tmp_path), small_item()
    for experiment in item.experiments():
        store.add(experiment.with_seed(0), record_of_failure("diverged") | {"local_only": 0.1}, None)
    assert plan_campaign([item], [0], store, tmp_path).jobs == ()
    assert {job.experiment.seed for job in plan_campaign([item], [0, 1], store, tmp_path).jobs} == {1}
    store.add(item.experiments()[0].with_seed(0), {**record_of_failure("x"), "numerics_version": -1}, None)
    again = plan_campaign([item], [0], store, tmp_path).jobs
    assert [job.alone for job in again] == [False, True]  # the federation, and its clients alone


RECORD = {
    "numerics_version": NUMERICS_VERSION,
    "accuracy": {},
    "personal": None,
    "curves": {},
    "seconds": {"train": 1.0},
}
RECORD |= {"machine": "m", "torch": "2"}
DAMAGED: list[tuple[object, str]] = [
    ([], "must be a JSON object"),
    ({}, "'seeds' must have a record"),
    ({"seeds": []}, "'seeds' must have a record"),
    ({"seeds": {"0": {}}}, "'seeds' must have a record"),
    ({"seeds": {"0": RECORD, "first": RECORD}}, "whole numbers, got 'first'; remove the file"),
    ({"seeds": {"0": RECORD}, "digest": "another"}, "belongs to another experiment"),
    ({"seeds": {"0": RECORD | {"accuracy": 3}}}, "accuracy"),
    ({"seeds": {"0": RECORD | {"accuracy": {"trained": "high"}}}}, "high"),
    ({"seeds": {"0": record_of_failure("diverged") | {"local_only": "high"}}}, "local_only"),
    ({"seeds": {"0": RECORD | {"seconds": {}}}}, "seed 0 has wrong or missing parts"),
    ({"seeds": {"0": RECORD | {"curves": {"accuracy": {"rounds": [1], "values": []}}}}}, "accuracy"),
    ({"seeds": {"0": {"numerics_version": NUMERICS_VERSION}}}, "accuracy, personal"),
]


@pytest.mark.parametrize(("content", "message"), DAMAGED)
def test_a_damaged_file_of_results_is_named(content: object, message: str, tmp_path: Path) -> None:
    store, experiment = Store(tmp_path), small_item().experiments()[0]
    if isinstance(content, dict):
        content = {"digest": experiment.digest()} | content
    store.path(experiment).write_text(json.dumps(content))
    with pytest.raises(RunError, match=f"{store.path(experiment).name}.*{message}"):
        plan_campaign([small_item()], [0], store, tmp_path)


def test_a_diverged_run_is_a_result_without_a_number(tmp_path: Path) -> None:
    store, item, scale = Store(tmp_path), small_item(), find_scale("tiny")
    for experiment in item.experiments():
        store.add(experiment, record_of_failure("every update was rejected"), None)
    found = summarize_item(item, scale, [0], store, "command")
    failed = {cell["row"]: cell["failed"] for cell in found["cells"]}
    assert failed.pop("local-only training") == []  # which does not depend on the federation, and was not run
    assert list(failed.values()) == [[0]] * 4
    assert {claim["verdict"] for claim in found["claims"]} == {"not decided"}
    assert {tuple(claim["diverged"]) for claim in found["claims"]} == {(0,)}
    assert value_of(record_of_failure("x"), "trained") is None


LAPTOP = Path(__file__).parents[2] / "docs" / "results" / "laptop"
ENDED = sorted(file.stem for file in LAPTOP.glob("tuning*.json"))


@pytest.mark.parametrize("search", ENDED)
def test_a_search_that_has_ended_wants_nothing_more(search: str) -> None:
    """Also after its result has become the scale's: what it starts with must not depend on what it chose."""
    scale = find_scale("laptop")
    store = Store(LAPTOP / "experiments")
    assert rate_search(search, scale, 1, store).wanted() is None


def test_table_6_has_rows_at_the_rates_of_its_clients_where_these_were_tuned() -> None:
    scale = find_scale("tiny")
    (without,) = find_items("table6", scale)
    assert {cell.column for cell in without.cells} == {"K = 100"}
    rates = {"fedavg+clients": 0.11, "fedavg+babu+clients": 0.12, "fedavg+spherefed+clients": 0.13}
    (item,) = find_items("table6", replace(scale, rates=scale.rates | rates))
    assert item.cells[: len(without.cells)] == without.cells
    for cell in item.cells[len(without.cells) :]:
        overlay = "+babu" if BABU in cell.row else "+spherefed" if OURS in cell.row else ""
        assert cell.experiment is not None
        assert cell.experiment.local_training.lr == rates[f"fedavg{overlay}+clients"]
        assert (cell.experiment.partition.clients, cell.experiment.cohort) == (100, 10)


def test_a_page_has_the_whole_configuration_of_its_scale(tmp_path: Path) -> None:
    scale = find_scale("tiny")
    page = item_page(summarize_item(small_item(), scale, [0], Store(tmp_path), "command"))
    (line,) = [line for line in page.splitlines() if line.startswith("- Configuration of the scale")]
    shown = json.loads(line.split("`")[1])
    assert {field.name for field in fields(Experiment)} == set(shown)
    assert experiment_from_mapping(shown) == scale.template
    assert shown["local"]["momentum"] == LocalTraining(lr=1.0).momentum


TUNED_CCVR = {"fedavg+ccvr", "fedavg+ccvr-tukey"}


@pytest.mark.parametrize(
    ("name", "used"),
    [
        ("table4", {"fedavg", "fedavg+spherefed", "fedavg+spherefed+ccvr", "fedavg+spherefed+ccvr-tukey"}),
        ("table5", {"fedavg", "fedavg+babu", "fedavg+spherefed"} | TUNED_CCVR),
        ("table9", {"fedavg", "fedavg+babu"}),
        ("table10", {"fedavg+spherefed"}),
        ("regimes", {"fedavg", "fedavg+spherefed", "fedavg+frozen", "fedavg+spherefed+frozen"}),
    ],
)
def test_a_page_lists_the_tuning_of_the_methods_that_its_cells_use(name: str, used: set[str], tmp_path: Path) -> None:
    scale = find_scale("laptop")
    (item,) = find_items(name, scale)
    found = summarize_item(item, scale, [0], Store(tmp_path), "command")
    assert set(found["tuning"]) == used
    page = item_page(found)
    assert {line.split(":")[0] for line in page.splitlines() if line.startswith("- Tuning of ")} == {
        f"- Tuning of {method}" for method in used
    }


@pytest.mark.parametrize("name", ["table2", "table3", "table6", "table8", "rounds", "fig2", "fig3"])
def test_every_rate_of_an_item_is_one_that_its_page_lists(name: str, tmp_path: Path) -> None:
    """And the other way round: rates from other methods' cells are not listed."""
    scale = find_scale("laptop")
    (item,) = find_items(name, scale)
    tuning = summarize_item(item, scale, [0], Store(tmp_path), "command")["tuning"]
    listed = {entry["chosen"]["local.lr"] for entry in tuning.values() if "local.lr" in entry["chosen"]}
    assert {experiment.local_training.lr for experiment in item.experiments()} == listed


def test_rates_of_table_6_are_tuned_with_its_clients(tmp_path: Path) -> None:
    scale = find_scale("laptop")
    wanted = rate_search("tuning-clients", scale, 1, Store(tmp_path)).wanted()
    (item,) = find_items("table6", scale)
    reported = {cell.row: cell.experiment for cell in item.cells}
    rows = {"fedavg+clients": "FedAvg", "fedavg+spherefed+clients": "FedAvg + SphereFed"}
    assert wanted is not None
    for cell in (cell for cell in wanted.cells if cell.row in rows):
        own, tuned = reported[rows[cell.row]], cell.experiment
        assert own is not None
        assert tuned is not None
        same = replace(own, data=scale.tuning_data, evaluate_every=tuned.evaluate_every, seed=tuned.seed)
        assert same.with_lr(tuned.local_training.lr).digest() == tuned.digest()
    assert [cell.column for cell in wanted.cells] == ["0.005", "0.01", "0.02", "2", "4", "8", "0.005", "0.01", "0.02"]


def test_cells_that_a_scale_does_not_run_say_so(tmp_path: Path) -> None:
    (item,) = find_items("table2", find_scale("laptop"))
    missing = {cell.column for cell in item.cells if cell.experiment is None}
    assert missing == {COLUMNS[3]}
    found = summarize_item(item, find_scale("laptop"), [0], Store(tmp_path), "command")
    assert all(cell["ours"] is None for cell in found["cells"])


def test_unknown_names_are_refused_with_what_is_allowed() -> None:
    with pytest.raises(ConfigError, match=r"unknown item 'table11'.*did you mean 'table1"):
        find_items("table11", find_scale("tiny"))
    for nothing in ("", ",", " , "):
        with pytest.raises(ConfigError, match="name an item"):
            find_items(nothing, find_scale("tiny"))
    with pytest.raises(ConfigError, match="unknown scale"):
        find_scale("large")


def test_a_part_of_an_item_is_chosen_by_row_and_column() -> None:
    (item,) = find_items("table2", find_scale("laptop"))
    (part,) = with_cells([item], "FedAvg", "α = 0.1")
    assert len(part.cells) == 8
    assert len(part.trainings()) == 3
    assert with_cells([item], None, None) == [item]
    (tuned,) = with_cells([item], "FedAvg + CCVR", "α = 0.1")
    assert [cell.row for cell in tuned.cells] == ["FedAvg + CCVR", "FedAvg + CCVR, tuned"]


@pytest.mark.parametrize("columns", ["α = 0.1,α = 0.7", "α = 0.7, IID", "α = 0.7"])
def test_every_column_has_to_be_one_of_a_cell(columns: str) -> None:
    items = find_items("table2,table1", find_scale("laptop"))
    with pytest.raises(ConfigError, match=r"no cell has the column 'α = 0\.7'; columns: IID, α = 0\.5, α = 0\.1"):
        with_cells(items, "FedAvg", columns)


def test_a_column_is_chosen_that_has_a_comma_in_its_name() -> None:
    items = find_items("table8", find_scale("laptop"))
    (part,) = with_cells(items, None, "α = 0.5, deviation over clients,α = 0.1")
    assert {cell.column for cell in part.cells} == {"α = 0.5, deviation over clients", "α = 0.1"}


@pytest.mark.parametrize(("rows", "columns"), [("Fed", None), ("Fed", "α = 0.1")])
def test_rows_and_columns_without_a_cell_are_refused(rows: str | None, columns: str | None) -> None:
    (item,) = find_items("table2", find_scale("laptop"))
    with pytest.raises(ConfigError, match=r"names no cell; rows: FedAvg, .*; columns: IID, α = 0\.5"):
        with_cells([item, item], rows, columns)


def test_balanced_partitions_have_results_of_their_own() -> None:
    plain, balanced = find_scale("laptop"), find_scale("laptop", balanced=True)
    assert balanced.name == "laptop-balanced"
    (one,), (other,) = find_items("fig4", plain), find_items("fig4", balanced)
    assert not {e.digest() for e in one.experiments()} & {e.digest() for e in other.experiments()}
    for experiment in other.experiments():
        assert experiment.partition == Dirichlet(alpha=0.1, clients=10, balanced=True, min_size=10)


def test_a_client_that_trains_alone_is_a_federation_of_one(tmp_path: Path) -> None:
    start = base_of(find_scale("tiny"), "fedavg", "IID")
    assert start is not None
    alone = replace(start, partition=Iid(clients=1), rounds=2)
    federated = run_to_end(alone, tmp_path / "run")["accuracy"]["trained"][GLOBAL_TEST]
    assert _alone(alone, tmp_path / "alone") == (federated, [0, 1])
    apart, _ = _alone(replace(alone, partition=Shards(clients=5)), tmp_path / "apart")
    assert apart is not None
    assert apart < federated


def test_clients_that_train_alone_continue_where_they_were_interrupted(tmp_path: Path) -> None:
    start = base_of(find_scale("tiny"), "fedavg", "IID")
    assert start is not None
    alone = replace(start, partition=Shards(clients=3), rounds=3)
    expected, _ = _alone(alone, tmp_path / "whole")
    began = train_alone(alone, tmp_path / "parts", engine=Engine(), activity=Activity())
    assert next(began).index == 0
    with pytest.raises(RunError, match="another process is working on"):
        next(train_alone(alone, tmp_path / "parts", engine=Engine(), activity=Activity()))
    began.close()
    models = (tmp_path / "parts" / "models.safetensors").read_bytes()
    assert _alone(alone, tmp_path / "parts") == (expected, [1, 2])
    (tmp_path / "parts" / "models.safetensors").write_bytes(models)  # killed before it removed them
    assert _alone(alone, tmp_path / "parts") == (expected, [])
    assert [path.name for path in (tmp_path / "parts").iterdir()] == ["local_only.json"]  # no weights are left


def test_models_of_clients_alone_that_cannot_be_continued_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = base_of(find_scale("tiny"), "fedavg", "IID")
    assert start is not None
    alone = replace(start, partition=Shards(clients=2), rounds=2)
    began = train_alone(alone, tmp_path, engine=Engine(), activity=Activity())
    next(began)
    began.close()
    with pytest.raises(RunError, match=r"another experiment or version; remove it"):
        next(train_alone(replace(alone, rounds=9), tmp_path, engine=Engine(), activity=Activity()))
    with monkeypatch.context() as patched:
        patched.setattr(local_only, "NUMERICS_VERSION", -1)
        with pytest.raises(RunError, match=r"another experiment or version; remove it"):
            next(train_alone(alone, tmp_path, engine=Engine(), activity=Activity()))
    (tmp_path / "models.safetensors").write_bytes(b"no tensors")
    with pytest.raises(RunError, match=r"cannot be read.*remove it to train these clients again"):
        next(train_alone(alone, tmp_path, engine=Engine(), activity=Activity()))
    (tmp_path / "local_only.json").write_text('{"accuracy": 0.5, "numerics_version": -1}')
    assert not is_trained_alone(tmp_path)


def test_clients_alone_do_not_replace_the_record_of_a_federation_that_is_missing(tmp_path: Path) -> None:
    """A record of other numerics does not count; what clients alone add must not be kept in its place."""
    (item,) = with_cells([small_item()], "local-only training", None)
    (experiment,) = item.experiments()
    store = Store(tmp_path / "results")
    store.add(experiment, {**made_up_record(0.1, 0.1), "numerics_version": -1}, None)
    before = store.path(experiment).read_bytes()
    campaign = plan_campaign([item], [0], store, tmp_path / "runs")
    alone = replace(campaign, jobs=tuple(job for job in campaign.jobs if job.alone))
    list(run_campaign(alone, store, engine=Engine()))
    assert store.path(experiment).read_bytes() == before


def test_clients_alone_have_a_result_where_the_federation_diverged(tmp_path: Path) -> None:
    (item,) = with_cells([small_item()], "local-only training", None)
    (experiment,) = item.experiments()
    store, scale = Store(tmp_path / "results"), find_scale("tiny")
    store.add(experiment, record_of_failure("diverged"), None)
    campaign = plan_campaign([item], [0], store, tmp_path / "runs")
    assert [job.alone for job in campaign.jobs] == [True]
    (cell,) = summarize_item(item, scale, [0], store, "")["cells"]
    assert (cell["ours"], cell["failed"]) == (None, [])
    list(run_campaign(campaign, store, engine=Engine()))
    record = store.record(experiment, 0)
    assert record is not None
    assert record["error"] == "diverged"
    (cell,) = summarize_item(item, scale, [0], store, "")["cells"]
    assert cell["ours"]["mean"] == pytest.approx(100 * record["local_only"], abs=0.01)
    assert cell["failed"] == []
    assert not plan_campaign([item], [0], store, tmp_path / "runs").jobs


def test_cells_whose_encoder_is_not_installed_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    items = find_items("regimes,fig4", find_scale("laptop"))
    assert without_missing_packages(items) == (items, [])
    monkeypatch.setattr(catalog, "find_spec", lambda name: None)
    kept, missing = without_missing_packages(items)
    assert missing == ["regimes (frozen features)"]
    assert kept[1] == items[1]
    assert {cell.column for cell in kept[0].cells} == {"E = 10", "E = 2", "shallow network"}


def test_clients_alone_run_side_by_side_with_the_same_result(tmp_path: Path) -> None:
    (item,) = with_cells([small_item()], "local-only training", None)
    found = []
    for processes in (1, 2):
        store = Store(tmp_path / str(processes))
        campaign = plan_campaign([item], [0, 1], store, tmp_path / f"runs-{processes}")
        list(run_campaign(campaign, store, engine=Engine(), processes=processes))
        records = [store.record(item.experiments()[0], seed) for seed in (0, 1)]
        found.append([record["local_only"] for record in records if record is not None])
    assert found[0] == found[1]
    assert len(set(found[0])) == 2


def _alone(experiment: Experiment, folder: Path) -> tuple[float | None, list[int]]:
    """The accuracy of clients that train alone, and the rounds that were reported."""
    activity, indices = Activity(), []
    for progress in train_alone(experiment, folder, engine=Engine(), activity=activity):
        indices.append(progress.index)
        assert activity.fraction == 1.0  # every client has trained
    return local_only_accuracy(folder), indices


def test_alignment_is_the_mean_cosine_of_centred_class_means() -> None:
    rng = np.random.default_rng(0)
    first, second, labels = rng.normal(size=(30, 4)), rng.normal(size=(30, 4)), np.arange(30) % 3
    cosines = []
    means = [[x[labels == c].mean(axis=0) for c in range(3)] for x in (first, second)]
    for c in range(3):
        a, b = (np.array(m[c]) - sum(m) / 3 for m in means)
        cosines.append(a @ b / np.sqrt((a @ a) * (b @ b)))
    found = class_alignment(torch.from_numpy(first), torch.from_numpy(second), torch.from_numpy(labels))
    assert found == pytest.approx(sum(cosines) / 3)


def test_mixing_is_the_share_of_the_other_model_among_nearest_neighbours() -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    first = rng.normal(size=(60, 4))
    second = first + rng.normal(size=(60, 4)) + 0.5
    points = [(client, i, x[i]) for client, x in enumerate((first, second)) for i in range(60)]
    by_class: dict[int, list[float]] = {}
    for client, i, place in points:
        others = [p for p in points if labels[p[1]] == labels[i] and p[1] != i]
        near = sorted(others, key=lambda p: float(((p[2] - place) ** 2).sum()))[:10]
        by_class.setdefault(labels[i], []).append(sum(p[0] != client for p in near) / 10)
    expected = 2 * sum(sum(shares) / len(shares) for shares in by_class.values()) / 3
    assert 0.2 < expected < 0.9
    inputs = [torch.from_numpy(x) for x in (first, second, labels)]
    assert class_mixing(*inputs) == pytest.approx(expected)


def test_a_map_keeps_what_is_apart_apart() -> None:
    """Two clients whose features of either class lie far from each other: four clusters in the map."""
    rng, labels = np.random.default_rng(0), torch.tensor([5, 7, 3] * 12)
    shift = {(client, label): rng.normal(size=6) * 100 for client in (4, 2) for label in (3, 5, 7)}
    found = []
    for client in (4, 2):
        rows = np.stack([shift[client, int(label)] + rng.normal(size=6) for label in labels])
        found.append(LocalFeatures(client, torch.from_numpy(rows).float(), labels, torch.arange(36)))
    drawn = feature_map(found)
    assert drawn["clients"] == [4, 2]
    assert drawn["labels"] == [5, 7] * 12
    places = np.array(drawn["points"])
    groups = [f"{client} {label}" for client in drawn["clients"] for label in drawn["labels"]]
    for index, place in enumerate(places):
        distances = ((places - place) ** 2).sum(axis=1)
        nearest = [groups[i] for i in np.argsort(distances)[1:6]]
        assert nearest == [groups[index]] * 5


def test_only_trainings_without_a_comparison_of_their_local_models_are_run_again(tmp_path: Path) -> None:
    (item,) = find_items("fig3", find_scale("tiny"))
    store = Store(tmp_path)
    for experiment in item.experiments():
        for seed in (0, 1):
            kept = made_up_record(0.1, 0.1) | {"alignment": 0.5, "mixing": 0.5}
            store.add(experiment.with_seed(seed), kept, None)
    again = plan_campaign([item], [0, 1], store, tmp_path / "runs")
    assert {job.experiment.seed for job in again.jobs} == {0}  # only the first seed has a map
    assert len(again.aligned) == len(again.jobs) == 5


def test_the_time_to_make_a_head_is_measured_without_a_training(tmp_path: Path) -> None:
    (item,) = find_items("table10", find_scale("tiny"))
    store = Store(tmp_path / "results")
    for experiment in item.experiments():
        store.add(experiment, made_up_record(0.1, 0.1), None)
    campaign = plan_campaign([item], [0], store, tmp_path / "runs")
    assert campaign.jobs == ()
    assert list(run_campaign(campaign, store, engine=Engine())) == []
    cells = {cell.key: cell for cell in item.cells if cell.metric == "head_seconds"}
    for row in ("QR", "Tammes"):
        timed = cells[row, SECONDS].experiment
        assert timed is not None
        record = store.record(timed, 0)
        assert record is not None
        assert 0 < record["head_seconds"] < 60
    assert plan_campaign([item], [0], store, tmp_path / "runs").timed == ()


def test_a_cell_is_found_by_row_and_column() -> None:
    cell = Cell(row="a", column="b", experiment=None)
    assert replace(cell, row="c").key == ("c", "b")


def test_the_headline_has_means_and_paired_differences_of_the_rows_that_were_run(tmp_path: Path) -> None:
    scale, store = find_scale("laptop"), Store(tmp_path / "experiments")
    (item,) = find_items("table2", scale)
    cells = {cell.key: cell.experiment for cell in item.cells}
    base, ours = cells["FedAvg", "α = 0.1"], cells["FedAvg + SphereFed", "α = 0.1"]
    assert base is not None
    assert ours is not None
    for seed, (before, after) in enumerate([(0.10, 0.13), (0.12, 0.16)]):
        store.add(base.with_seed(seed), made_up_record(before, 0.0), None)
        store.add(ours.with_seed(seed), made_up_record(before + 0.01, after), None)
    found = summarize_item(item, scale, [0, 1], store, "command")
    columns = headline_columns(found)
    assert {column: [cell["row"] for cell in shown] for column, shown in columns.items()} == {
        "α = 0.1": ["FedAvg", "FedAvg + SphereFed before FFC", "FedAvg + SphereFed"]
    }
    lines = headline_page(found).splitlines()
    # Two values a and b have the mean (a + b)/2 and the half-width 12.706 · |a − b|/2.
    assert "| FedAvg | 11.00 ± 12.71 | – |" in lines
    assert "| FedAvg + SphereFed | 14.50 ± 19.06 | +3.50 ± 6.35 |" in lines
    assert "| FedAvg + SphereFed before FFC | 12.00 ± 12.71 | +1.00 ± 0.00 |" in lines
    (tmp_path / "laptop").mkdir()
    (tmp_path / "laptop" / "table2.json").write_text(json.dumps(found))
    assert write_headline(tmp_path) == tmp_path / "headline.md"
    assert write_headline(tmp_path / "nothing") is None


def test_a_reference_with_more_seeds_does_not_displace_the_methods(tmp_path: Path) -> None:
    scale, store = find_scale("laptop"), Store(tmp_path)
    (item,) = find_items("table2", scale)
    cells = {cell.key: cell.experiment for cell in item.cells}
    for row, seeds in {"FedAvg": 2, "FedAvg + SphereFed": 2, "centralised training": 3}.items():
        experiment = cells[row, "IID"]
        assert experiment is not None
        for seed in range(seeds):
            store.add(experiment.with_seed(seed), made_up_record(0.1, 0.1), None)
    found = headline_columns(summarize_item(item, scale, [0, 1, 2], store, "command"))
    assert "centralised training" not in [cell["row"] for cell in found["IID"]]
    assert [cell["row"] for cell in found["IID"]][-1] == "FedAvg + SphereFed"
    assert list(found) == ["IID"]


def test_a_training_that_is_repeated_for_another_cell_keeps_its_record(tmp_path: Path) -> None:
    (item,) = with_cells([small_item()], "+ Fix(R) + FFC", None)
    (experiment,) = item.experiments()
    store, training = Store(tmp_path / "results"), experiment.training_part()
    kept = made_up_record(0.1, 0.1) | {"alignment": 0.5}
    store.add(training, kept, None)
    campaign = plan_campaign([item], [0], store, tmp_path / "runs")
    for _ in run_campaign(campaign, store, engine=Engine()):
        pass
    found, calibrated = store.record(training, 0), store.record(experiment, 0)
    assert found is not None
    assert {name: found[name] for name in kept} == kept
    assert calibrated is not None
    assert calibrated["accuracy"]["trained"] != 0.1


@pytest.mark.parametrize("scale", SCALES)
def test_no_claim_of_figure_3_is_about_a_model_that_is_compared_with_itself(scale: str) -> None:
    (item,) = find_items("fig3", find_scale(scale))
    alone = {cell.key for cell in item.cells if cell.experiment and cell.experiment.partition == Iid(clients=1)}
    assert len(alone) == 2
    assert not [claim.text for claim in item.claims if alone & {*claim.plus, *claim.minus}]
    assert any("only a reference" in line for line in item.deviations)


def test_a_reduction_that_two_counts_of_operations_disagree_about_is_not_decided() -> None:
    (item,) = find_items("table1", find_scale("tiny"))
    assert item.computed is not None
    verdicts = {claim["text"]: claim for claim in item.computed()["verdicts"]}
    for method, factors in {"FedAvg": ("108.7", "75.9"), "CCVR": ("121.8", "85.7")}.items():
        claim = verdicts[f"over two orders of magnitude less computation than {method}"]
        assert claim["verdict"] == "not decided"
        assert all(factor in claim["reason"] for factor in factors)
        assert verdicts[f"the classifier is more efficient than that of {method}"]["verdict"] == "holds"
    assert verdicts["over two orders of magnitude less communication than FedAvg"]["verdict"] == "does not hold"


def test_pages_say_how_many_seeds_were_run_and_not_how_many_were_asked_for(tmp_path: Path) -> None:
    scale, store, item = find_scale("tiny"), Store(tmp_path), small_item()
    seeds = [0, 1, 2]

    def pages() -> tuple[str, str, str]:
        found = summarize_item(item, scale, seeds, store, "spherefed reproduce table9")
        return item_page(found), index_page([found]).splitlines()[-1], claims_page([found])

    page, index, _ = pages()
    assert "Made by `spherefed reproduce table9` (not run); do not edit. 5 of 5 cells have fewer seeds" in page
    assert "| tiny | – | 3 not run |" in index
    for number, experiment in enumerate(item.experiments()):
        for seed in seeds[: 3 if number else 2]:
            record = record_of_failure("diverged") if seed == 2 else made_up_record(0.1, 0.2)
            store.add(experiment.with_seed(seed), record | {"local_only": 0.1}, None)
    page, index, claims = pages()
    assert "`spherefed reproduce table9` (partly run); do not edit. " in page
    assert "| tiny | 2–3 |" in index
    assert "| item | claim | paper | tiny | n |" in claims
    assert "| 2 (+ 1 diverged) |" in claims
    store.add(item.experiments()[0].with_seed(2), record_of_failure("diverged") | {"local_only": 0.1}, None)
    page, index, _ = pages()
    assert "Made by `spherefed reproduce table9`; do not edit." in page
    assert "| tiny | 3 |" in index


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("rounds", '30 in "IID (30 rounds'),
        ("fig3", '30 in "FedAvg, 30 rounds", "SphereFed, 30 rounds". Seeds'),
        ("table5", '50 in "E = 1". Seeds'),
        ("table2", ""),
    ],
)
def test_a_page_names_the_columns_or_rows_with_another_number_of_rounds(name: str, said: str, tmp_path: Path) -> None:
    scale = find_scale("laptop")
    (item,) = find_items(name, scale)
    page = item_page(summarize_item(item, scale, [0], Store(tmp_path), "c"))
    protocol = f"Scale `laptop`: {scale.description}. "
    assert protocol + (f"Other numbers of rounds: {said}" if said else "Seeds: 0;") in page
    for cell in item.cells:
        if "(10 rounds" in cell.column or "(30 rounds" in cell.column:
            assert (f'"{cell.column}"' in page) == ("(30 rounds" in cell.column)


@pytest.mark.parametrize(
    ("name", "content", "wrong"),
    [
        ("table9", {}, "item, title, scale, protocol, tuning, seeds, cells, claims"),
        ("table9", [], "must be a JSON object"),
        ("table9", {"claims": [{}]}, r"\(claims\)"),
        ("table9", {"cells": [3]}, r"\(cells\)"),
        ("table1", {"computed": {}}, r"\(verdicts\)"),
        ("table1", {"computed": 3}, r"\(computed\)"),
    ],
)
def test_a_damaged_file_of_an_item_is_named(name: str, content: object, wrong: str, tmp_path: Path) -> None:
    scale = find_scale("tiny")
    items = find_items("table1,table9", scale)
    for item in items:
        write_item(summarize_item(item, scale, [0], Store(tmp_path / "none"), "c"), tmp_path / "tiny")
    write_claims(tmp_path, tmp_path / "claims.md", ITEMS)
    file = tmp_path / "tiny" / f"{name}.json"
    file.write_text(
        json.dumps(json.loads(file.read_text()) | content if content and isinstance(content, dict) else content)
    )
    said = rf"{name}\.json is damaged: .*{wrong}.*write it again: spherefed reproduce {name} --scale tiny --no-training"
    with pytest.raises(RunError, match=said):
        write_claims(tmp_path, tmp_path / "claims.md", ITEMS)


def test_a_file_that_is_no_json_is_named_with_what_to_do(tmp_path: Path) -> None:
    scale, item, store = find_scale("tiny"), small_item(), Store(tmp_path / "experiments")
    file = write_item(summarize_item(item, scale, [0], store, "c"), tmp_path / "tiny").with_suffix(".json")
    file.write_text(file.read_text()[:100])
    with pytest.raises(RunError, match=r"table9\.json cannot be read.*; write it again: spherefed reproduce table9"):
        write_claims(tmp_path, tmp_path / "claims.md", ITEMS)
    first = store.path(item.experiments()[0])
    first.parent.mkdir()
    first.write_text("<<<<<<< HEAD")
    with pytest.raises(RunError, match=rf"{first.name} cannot be read.*; remove the file to run its experiment again"):
        plan_campaign([item], [0], store, tmp_path)


def test_computed_claims_and_measured_ones_share_a_page(tmp_path: Path) -> None:
    scale = find_scale("tiny")
    found = [summarize_item(item, scale, [0], Store(tmp_path), "c") for item in find_items("table1,table9", scale)]
    page = claims_page(found)
    assert "| table1 | SphereFed: 7 MB | – | [holds](results/tiny/table1.md) | – |" in page
    assert "| table9 | a fixed random head helps | +1.01 | [not run](results/tiny/table9.md) | – |" in page
    assert index_page(found).count("](tiny/") == 2


@pytest.mark.parametrize(
    ("mean", "half", "text"),
    [
        (15.284, 0.62, "15.28 ± 0.62"),
        (0.9997, 0.0, "0.9997 ± 0.0000"),
        (0.0005, 0.0002, "0.0005 ± 0.0002"),
        (1.0, 0.0, "1.00 ± 0.00"),
        (0.0004, None, "0.0004"),
        (1.2345, None, "1.23"),
    ],
)
def test_small_quantities_have_more_decimals(mean: float, half: float | None, text: str) -> None:
    assert mean_text({"mean": mean, "half_width": half}) == text


@pytest.mark.parametrize(("name", "scales"), [("rounds", 1), ("fig4", 1), ("fig2", 2)])
def test_panels_of_one_measure_have_one_scale(name: str, scales: int, monkeypatch: pytest.MonkeyPatch) -> None:
    (figure,) = drawn_figures(name, monkeypatch)
    assert len(figure.axes) > 1
    assert len({axes.get_ylim() for axes in figure.axes}) == scales


def test_table_8_shows_spherefed_in_its_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    (figure,) = drawn_figures("table8", monkeypatch, scale="tiny")
    axes = figure.axes[0]
    colours: dict[bool, set[str]] = {True: set(), False: set()}
    for label, container in zip(axes.get_yticklabels(), axes.containers, strict=True):
        colours[label.get_text().startswith("Ours")].add(container.lines[0].get_color())
    assert len(colours[True]) == len(colours[False]) == 1
    assert colours[True] != colours[False]


def drawn_figures(name: str, monkeypatch: pytest.MonkeyPatch, *, scale: str = "laptop") -> list[Figure]:
    """The figures that are drawn from the committed JSON of an item."""
    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: drawn.append(self))
    item_figure(json.loads((LAPTOP.parent / scale / f"{name}.json").read_text()))
    return drawn
