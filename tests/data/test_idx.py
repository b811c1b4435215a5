"""Fashion-MNIST from small files in the official format."""

import pytest

from spherefed.data.sources import load
from support.data_files import (
    fashion_members,
    write_fashion,
)

pytestmark = pytest.mark.usefixtures("no_debian_folder")


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("place", ["root", "sub", "debian"])
def test_fashion_mnist_is_found_in_three_places(tmp_path, packed, place, monkeypatch):
    root = tmp_path / "root"
    folder = write_fashion(fashion_members(), tmp_path / "made", packed)
    target = {"root": root, "sub": root / "fashion-mnist", "debian": tmp_path / "debian"}[place]
    target.parent.mkdir(exist_ok=True)
    folder.rename(target)
    dataset = load("fashion-mnist", root)
    assert dataset.input_shape == (1, 28, 28)
    assert (len(dataset.train), len(dataset.test)) == (12, 6)
    assert dataset.train.labels.tolist() == [*range(10), 0, 1]
    assert dataset.augment is None
    assert dataset.provenance["official"] == "no"
