"""Partitions: disjoint, complete, seeded, always finished; their figures, files and pictures."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from scipy.spatial.distance import jensenshannon

from spherefed.data.heterogeneity import heterogeneity
from spherefed.data.partition import (
    Dirichlet,
    Iid,
    Partition,
    Partitioner,
    QuantitySkew,
    Shards,
    Stored,
    partition,
    read_partition,
    write_partition,
)
from spherefed.errors import ConfigError, DataError
from spherefed.report.heatmap import heterogeneity_lines, terminal_heatmap, write_heatmap
from spherefed.schema import from_plain, to_plain

alphas = st.floats(min_value=1e-320, max_value=1e300, allow_nan=False)
clients = st.integers(1, 30)
partitioners = st.one_of(
    st.builds(Iid, clients=clients),
    st.builds(Dirichlet, alpha=alphas, clients=clients, min_size=st.integers(0, 2)),
    st.builds(Shards, shards_per_client=st.integers(1, 5), clients=clients),
    st.builds(QuantitySkew, alpha=alphas, clients=clients, min_size=st.integers(0, 2)),
)


def labels_of(num: int, num_classes: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(num_classes, size=num)


@settings(max_examples=150, deadline=None)
@given(partitioner=partitioners, num=st.integers(60, 200), num_classes=st.integers(1, 12), seed=st.integers(0, 99))
def test_partitions_are_disjoint_complete_and_seeded(partitioner, num, num_classes, seed):
    labels = labels_of(num, num_classes, seed)
    first = partition(partitioner, labels, num_classes, np.random.default_rng(seed))
    again = partition(partitioner, labels, num_classes, np.random.default_rng(seed))
    assert first.digest() == again.digest()
    assert len(first.parts) == partitioner.clients
    assert sorted(np.concatenate(first.parts).tolist()) == list(range(num))
    assert all((np.diff(part) > 0).all() for part in first.parts)
    assert first.label_counts.sum() == num
    assert min(first.sizes) >= getattr(partitioner, "min_size", 0)


@settings(max_examples=20, deadline=None)
@given(num=st.integers(0, 5), partitioner=st.sampled_from([Iid(), Dirichlet(), Shards(), QuantitySkew()]))
def test_fewer_examples_than_clients_still_end(num, partitioner):
    assert partition(partitioner, labels_of(num, 3), 3, np.random.default_rng(0)).sizes.sum() == num


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000))
def test_large_alpha_approaches_iid_and_small_alpha_separates(seed):
    labels = labels_of(4000, 10, seed)

    def figures(partitioner: Partitioner):
        return heterogeneity(partition(partitioner, labels, 10, np.random.default_rng(seed)))

    iid, wide, narrow = figures(Iid()), figures(Dirichlet(alpha=1e6)), figures(Dirichlet(alpha=0.05))
    assert wide.mean_js_distance <= iid.mean_js_distance + 0.01
    assert narrow.mean_js_distance > 0.6
    assert narrow.mean_effective_classes < wide.mean_effective_classes
    equal, skewed = figures(QuantitySkew(alpha=1e8)), figures(QuantitySkew(alpha=0.1))
    assert equal.max_size - equal.min_size <= 2
    assert skewed.max_size > 2 * 400


def test_shards_give_few_classes_and_equal_sizes():
    labels = np.repeat(np.arange(10), 100)
    outcome = partition(Shards(shards_per_client=2, clients=10), labels, 10, np.random.default_rng(0))
    assert set(outcome.sizes) == {100}
    assert ((outcome.label_counts > 0).sum(axis=1) <= 2).all()


def test_quantity_skew_keeps_the_mix_of_labels():
    labels = np.repeat(np.arange(4), 5000)
    outcome = partition(QuantitySkew(alpha=1.0, clients=5), labels, 4, np.random.default_rng(3))
    large = outcome.label_counts[outcome.sizes > 1000]
    assert np.abs(large / large.sum(axis=1, keepdims=True) - 0.25).max() < 0.05


@pytest.mark.parametrize(
    "make",
    [
        lambda: Shards(shards_per_client=0),
        lambda: Shards(clients=0),
        lambda: QuantitySkew(alpha=0.0),
        lambda: QuantitySkew(alpha=float("inf")),
        lambda: QuantitySkew(min_size=-1),
        lambda: partition(QuantitySkew(min_size=50), labels_of(100, 3), 3, np.random.default_rng(0)),
    ],
)
def test_impossible_partitions_are_refused(make):
    with pytest.raises(ConfigError):
        make()


@pytest.mark.parametrize(
    "value", [Iid(), Dirichlet(), Shards(clients=3), QuantitySkew(alpha=2.0), Stored(path="p.json")]
)
def test_partitioners_go_through_plain_data(value):
    assert from_plain(Partitioner, to_plain(value)) == value


# Figures


def test_figures_equal_scipy_pair_by_pair():
    labels = labels_of(500, 6)
    outcome = partition(Dirichlet(alpha=0.3, clients=7), labels, 6, np.random.default_rng(0))
    shares = [row / row.sum() for row in outcome.label_counts if row.sum()]
    pairs = [jensenshannon(p, q, base=2) for i, p in enumerate(shares) for q in shares[i + 1 :]]
    figures = heterogeneity(outcome)
    assert figures.mean_js_distance == pytest.approx(np.mean(pairs))
    entropies = [-sum(p * np.log(p) for p in row if p) for row in shares]
    assert figures.mean_effective_classes == pytest.approx(np.mean(np.exp(entropies)))


def test_figures_of_empty_clients_are_counted_not_divided_by_zero():
    outcome = Partition((np.array([0, 1]), np.array([], dtype=np.int64)), np.array([[1, 1], [0, 0]]))
    figures = heterogeneity(outcome)
    assert figures.num_empty == 1
    assert figures.effective_classes == pytest.approx((2.0, 0.0))
    assert figures.mean_js_distance == 0.0


# Files


def test_a_written_partition_is_read_back(tmp_path):
    labels = labels_of(200, 5)
    outcome = partition(Dirichlet(clients=4), labels, 5, np.random.default_rng(0))
    write_partition(outcome, tmp_path / "p.json")
    again = read_partition(tmp_path / "p.json", labels, 5)
    assert again.digest() == outcome.digest()
    assert np.array_equal(again.label_counts, outcome.label_counts)
    stored = partition(Stored(path=str(tmp_path / "p.json"), clients=4), labels, 5, np.random.default_rng(9))
    assert stored.digest() == outcome.digest()
    with pytest.raises(ConfigError, match="4 clients"):
        partition(Stored(path=str(tmp_path / "p.json"), clients=5), labels, 5, np.random.default_rng(9))
    assert list(tmp_path.iterdir()) == [tmp_path / "p.json"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda plain: plain | {"num_examples": 7}, "divides 7 examples"),
        (lambda plain: plain | {"format": "other"}, "format"),
        (lambda plain: plain | {"digest": "0" * 64}, "changed after"),
        (lambda plain: plain | {"clients": []}, "clients"),
        (lambda plain: plain | {"clients": [[0, 1, 2], [2, 3, 4, 5]]}, "example 2 belongs to several"),
        (lambda plain: plain | {"clients": [[0, 1, 2], [4, 5]]}, "example 3 belongs to no"),
        (lambda plain: plain | {"clients": [[0, 1, 2], [3, 4, 5, 6]]}, "index 6 of client 1"),
        (lambda plain: plain | {"clients": [[0, 1, 2], [3, 4, -1]]}, "index -1 of client 1"),
        (lambda plain: plain | {"clients": [[0, 1, 2], [3, 4, 5.0]]}, "client 1"),
        (lambda plain: plain | {"clients": [[0, 1, 2], "345"]}, "client 1"),
        (lambda plain: plain | {"clients": [[3, 1, 2], [0, 4, 5]]}, "digest"),
        (lambda plain: [plain], "not a partition file"),
    ],
)
def test_a_wrong_partition_file_is_refused_by_name(tmp_path, change, words):
    path = tmp_path / "p.json"
    write_partition(partition(Iid(clients=2), np.zeros(6, np.int64), 1, np.random.default_rng(0)), path)
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(DataError, match=words) as caught:
        read_partition(path, np.zeros(6, np.int64), 1)
    assert "p.json" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000])
def test_what_is_not_json_is_refused(tmp_path, content):
    (tmp_path / "p.json").write_bytes(content)
    with pytest.raises(DataError, match=r"p\.json"):
        read_partition(tmp_path / "p.json", np.zeros(6, np.int64), 1)
    with pytest.raises(DataError, match="cannot read"):
        read_partition(tmp_path / "absent.json", np.zeros(6, np.int64), 1)


# Pictures


def test_terminal_heat_map_fits_and_shows_who_holds_what():
    labels = labels_of(3000, 200)
    outcome = partition(Dirichlet(clients=99), labels, 200, np.random.default_rng(0))
    for colour in (True, False):
        lines = terminal_heatmap(outcome, width=80, max_rows=30, colour=colour).plain.splitlines()
        assert len(lines) <= 1 + 30
        assert max(map(len, lines)) <= 80
        assert lines[0] == "rows: clients; columns: classes 0–199, 3 a cell; brighter: more examples"
        assert [line.split()[0] for line in (lines[1], lines[-1])] == ["0–3", "96–98"]
    pair = Partition((np.arange(4), np.arange(4, 5)), np.array([[4, 0], [0, 1]]))
    header = "rows: clients; columns: classes 0–1; brighter: more examples"
    assert terminal_heatmap(pair, colour=False).plain == f"{header}\n0 █ \n1  ▒"
    coloured = terminal_heatmap(pair)
    assert coloured.plain == f"{header}\n0–1 ▀▀"
    Console(file=None, quiet=True).print(coloured)


def test_pictures_and_pages_are_written(tmp_path):
    outcome = partition(Dirichlet(clients=5), labels_of(300, 10), 10, np.random.default_rng(0))
    write_heatmap(outcome, tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    write_heatmap(outcome, tmp_path / "map.html", title="<who & what>")
    page = (tmp_path / "map.html").read_text(encoding="utf-8")
    assert "&lt;who &amp; what&gt;" in page
    assert outcome.digest() in page
    assert "http" not in page
    assert len(heterogeneity_lines(heterogeneity(outcome))) == 3
    with pytest.raises(ConfigError, match=r"\.png or \.html"):
        write_heatmap(outcome, tmp_path / "map.pdf")
