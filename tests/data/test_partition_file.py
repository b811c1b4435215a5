"""Partition files: read back as written, refused by name where they are wrong."""

import json

import numpy as np
import pytest

from spherefed.data.partition import (
    Dirichlet,
    Iid,
    Stored,
    partition,
    read_partition,
    write_partition,
)
from spherefed.errors import ConfigError, DataError
from support.small import random_labels


def test_a_written_partition_is_read_back(tmp_path):
    labels = random_labels(200, 5)
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
        (lambda plain: plain | {"num_examples": 7}, "is for 7 examples"),
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
