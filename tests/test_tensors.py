"""Named tensors: prefixes, digests and checks, each against a plain computation."""

import hashlib
from types import MappingProxyType

import pytest
import torch
from torch import Tensor

from spherefed.tensors import (
    add_prefix,
    digest,
    mismatch,
    non_finite,
    num_bytes,
    one_thread,
    strip_prefix,
    unlike,
)


def test_a_prefix_is_added_and_stripped_again() -> None:
    tensors = {"weight": torch.ones(1), "m.weight": torch.zeros(1)}
    both = add_prefix("m", tensors) | add_prefix("mm", tensors)
    assert list(both) == ["m.weight", "m.m.weight", "mm.weight", "mm.m.weight"]
    assert list(strip_prefix("m", both)) == list(tensors)  # mm. begins with m, too
    assert strip_prefix("m", both)["weight"] is tensors["weight"]


def test_a_digest_is_sha256_over_names_types_shapes_and_bytes_in_the_order_of_names() -> None:
    a, b = torch.tensor([1.0, 2.0]), torch.tensor([[3]], dtype=torch.int64)
    text = b"a\0torch.float32\0(2,)\0" + a.numpy().tobytes() + b"b\0torch.int64\0(1, 1)\0" + b.numpy().tobytes()
    assert digest({"b": b, "a": a}) == hashlib.sha256(text).hexdigest()


def test_digests_see_names_shapes_dtypes_and_single_bits() -> None:
    def of(name: str, tensor: Tensor) -> str:
        return digest({name: tensor})

    a = torch.tensor([1.0, 2.0])
    variants = [of("a", a), of("b", a), of("a", a.view(1, 2)), of("a", a.view(torch.int32))]
    variants.append(of("a", torch.nextafter(a, torch.tensor(3.0))))
    assert len(set(variants)) == len(variants)
    assert of("a", a.clone()) == variants[0]
    assert of("w", torch.arange(6).view(2, 3).T) == of("w", torch.arange(6).view(2, 3).T.contiguous())


def test_bytes_are_those_of_the_numbers() -> None:
    assert num_bytes({"a": torch.zeros(3, 2), "b": torch.zeros(5, dtype=torch.int64), "c": torch.zeros(0)}) == 24 + 40


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"a": torch.zeros(2)}, "missing ['b'], unexpected []"),
        ({"a": torch.zeros(2), "b": torch.zeros(1), "c": torch.zeros(1)}, "missing [], unexpected ['c']"),
        ({"a": torch.zeros(1, 2), "b": torch.zeros(1)}, "'a' has shape (1, 2), expected (2,)"),
        ({"a": torch.zeros(2), "b": torch.zeros(1).double()}, "'b' has dtype torch.float64, expected torch.float32"),
    ],
)
def test_the_first_mismatch_is_named(given: dict[str, Tensor], said: str) -> None:
    found = mismatch(given, {"a": torch.zeros(2), "b": torch.zeros(1)})
    assert found is not None
    assert said in found


def test_the_same_names_in_another_order_are_no_mismatch() -> None:
    a, b = torch.zeros(2), torch.ones(3)
    assert mismatch({"b": b, "a": a + 1}, {"a": a, "b": b}) is None


LIKE = {"a": torch.zeros(2), "b": torch.zeros(2, 3)}
ODD: dict[str, tuple[object, str | None]] = {
    "the same": ({"b": torch.ones(2, 3), "a": torch.ones(2)}, None),
    "another kind of mapping": (MappingProxyType({"a": torch.ones(2), "b": torch.ones(2, 3)}), "got a mappingproxy"),
    "a parameter": (
        {**LIKE, "a": torch.nn.Parameter(torch.ones(2), requires_grad=False)},
        "named tensors are expected, got 'a' with a Parameter",
    ),
    "another layout of the same values": ({**LIKE, "b": torch.ones(3, 2).t()}, None),
    "no mapping": ([1], "named tensors are expected, got a list"),
    "no tensor": ({**LIKE, "a": 1.0}, "got 'a' with a float"),
    "a name missing": ({"a": torch.ones(2)}, "names differ: missing ['b']"),
    "another shape": ({**LIKE, "a": torch.ones(3)}, "'a' has shape (3,)"),
    "another dtype": ({**LIKE, "a": torch.ones(2).double()}, "'a' has dtype torch.float64"),
    "no values": ({**LIKE, "a": torch.ones(2, device="meta")}, "'a' is not a dense tensor"),
    "sparse": ({**LIKE, "a": torch.ones(2).to_sparse()}, "'a' is not a dense tensor"),
    "nested": (
        {**LIKE, "a": torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged)},
        "got 'a' with a NestedTensor",
    ),
    "expanded": ({**LIKE, "b": torch.ones(1).expand(2, 3)}, "'b' holds fewer elements than its shape says"),
    "with a gradient": ({**LIKE, "a": torch.ones(2, requires_grad=True)}, "'a' is a tensor with pending operations"),
    "negated lazily": ({**LIKE, "a": torch.ones(2, dtype=torch.cfloat).conj().imag}, "pending operations"),
}


@pytest.mark.parametrize("name", ODD)
def test_tensors_that_differ_from_those_expected_are_named_with_the_cause(name: str) -> None:
    given, cause = ODD[name]
    found = unlike(given, LIKE)
    assert found is None if cause is None else found is not None and cause in found


def test_tensors_on_another_device_are_not_those_expected() -> None:
    like = {"a": torch.zeros(2, device="meta")}
    assert unlike({"a": torch.zeros(2)}, like) == "'a' is on cpu, expected meta"


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("position", [0, 4])
def test_a_number_that_is_not_finite_is_found_by_name(bad: float, position: int) -> None:
    tensors = {"fine": torch.ones(3), "bad": torch.ones(5), "whole": torch.ones(2, dtype=torch.int64)}
    assert non_finite(tensors) is None
    tensors["bad"][position] = bad
    assert non_finite(tensors) == "bad"


def test_opposite_infinities_do_not_cancel() -> None:
    assert non_finite({"a": torch.tensor([float("inf")]), "b": torch.tensor([float("-inf")])}) == "a"


def test_finite_numbers_whose_sum_overflows_are_finite() -> None:
    assert non_finite({"a": torch.full((4,), 3e38)}) is None
    assert non_finite({}) is None


def test_the_number_of_threads_is_put_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
            with one_thread():
                assert torch.get_num_threads() == 1
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        with pytest.raises(RuntimeError, match="inside"), one_thread():
            raise RuntimeError("inside")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
