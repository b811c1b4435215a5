"""Named random streams: their word layout, which is part of every stored result, and their independence."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spherefed.rng import Purpose, stream, torch_stream

KEYS = st.lists(st.integers(0, 2**34), max_size=3)
"""Also keys of more than one 32-bit word, for which the fast path does not serve."""


def numpy_sequence(seed: int, purpose: int, keys: tuple[int, ...]) -> np.random.SeedSequence:
    """The name of a stream as numpy itself spells it: the children of a seed."""
    return np.random.SeedSequence(entropy=seed, spawn_key=(purpose, *keys))


@given(seed=st.integers(0, 2**66), purpose=st.sampled_from(Purpose), keys=KEYS)
def test_a_stream_is_numpys_child_sequence_of_the_seed(seed: int, purpose: Purpose, keys: list[int]) -> None:
    sequence = numpy_sequence(seed, int(purpose), tuple(keys))
    expected = np.random.Generator(np.random.PCG64(sequence)).integers(2**63, size=4)
    assert np.array_equal(stream(seed, purpose, *keys).integers(2**63, size=4), expected)


@given(seed=st.integers(0, 2**66), purpose=st.sampled_from(Purpose), keys=KEYS)
def test_torchs_stream_is_seeded_by_the_first_63_bits_of_the_same_sequence(
    seed: int, purpose: Purpose, keys: list[int]
) -> None:
    high, low = (int(word) for word in numpy_sequence(seed, int(purpose), tuple(keys)).generate_state(2))
    expected = torch.rand(3, generator=torch.Generator().manual_seed((high * 2**32 + low) // 2))
    with torch_stream(seed, purpose, *keys):
        assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ((0, Purpose.BATCHES, 3, 7), 765547763804168883),
        ((1, Purpose.PARTITION), 4388153156890594173),
        ((2**32 - 1, Purpose.COHORT, 2**32 - 1), 4489090236318589155),
        ((2**32, Purpose.BATCHES, 0), 2008932649770090145),
        ((0, Purpose.BATCHES, 2**32), 6544357077731780751),
    ],
)
def test_the_first_draw_of_a_stream_never_changes(name: tuple[Any, ...], first: int) -> None:
    """Pinned: a new version of numpy or of this package that draws other numbers cannot repeat stored runs."""
    assert stream(*name).integers(2**63) == first


def test_the_numbers_of_purposes_never_change() -> None:
    """Pinned for the same reason; a new purpose is appended here."""
    assert {purpose.name: purpose.value for purpose in Purpose} == {
        "SPLIT": 0,
        "PARTITION": 1,
        "COHORT": 2,
        "ENCODER": 3,
        "HEAD": 4,
        "BATCHES": 5,
        "LAYERS": 6,
        "HOLDOUT": 7,
        "SUBSET": 8,
        "REESTIMATE": 9,
        "FEATURE_MAP": 10,
        "MEASURE": 11,
        "SERVER": 12,
        "SOLVE": 13,
        "VIRTUAL": 20,
        "REFIT": 21,
    }


def test_streams_of_different_names_share_no_number() -> None:
    names = [(seed, purpose, key) for seed in (0, 1) for purpose in Purpose for key in (0, 1)]
    firsts = {int(stream(seed, purpose, key).integers(2**63)) for seed, purpose, key in names}
    assert len(firsts) == len(names)


def test_torchs_generator_follows_the_named_stream_and_is_put_back() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    draws = []
    for name in ((0, 1), (0, 1), (1, 0)):
        with torch_stream(0, Purpose.LAYERS, *name):
            draws.append(torch.rand(4))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_torchs_generator_is_put_back_after_an_error() -> None:
    before = torch.random.get_rng_state()
    with pytest.raises(RuntimeError, match="inside"), torch_stream(0, Purpose.LAYERS):
        raise RuntimeError("inside")
    assert torch.equal(torch.random.get_rng_state(), before)
