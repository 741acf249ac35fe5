"""What is not finite is found, and named."""

import math

import pytest
import torch

from conftest import ToyModel
from engine.finite import describe_bad_state, find_non_finite


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 4999, 10006])
def test_one_bad_number_among_many_is_found(bad: float, place: int) -> None:
    spoiled = torch.ones(10007)
    spoiled[place] = bad
    tensors = {
        "good": torch.zeros(3),
        "large": torch.full((4,), 3e38),  # finite, but its square is not
        "spoiled": spoiled,
        "half": torch.tensor([65504.0], dtype=torch.float16),
        "double": torch.tensor(1e300, dtype=torch.float64),
        "count": torch.tensor(7),
        "empty": torch.zeros(0),
    }
    assert find_non_finite(tensors) == ["spoiled"]
    del tensors["spoiled"]
    assert find_non_finite(tensors) == []
    assert find_non_finite({}) == []


def test_weights_and_the_state_of_the_optimiser_are_named(toy_model: ToyModel) -> None:
    optimizer = torch.optim.Adam(toy_model.parameters())
    assert describe_bad_state(toy_model, optimizer) == ""  # no step was taken: there is no state yet
    for parameter in toy_model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert describe_bad_state(toy_model, optimizer) == ""
    optimizer.state[toy_model.linear.bias]["exp_avg_sq"][1] = math.inf
    message = "the state of the optimiser is not finite (1 of 6 tensors, first exp_avg_sq of linear.bias)"
    assert describe_bad_state(toy_model, optimizer) == message
    toy_model.linear.weight.data[0, 0] = math.nan
    assert describe_bad_state(toy_model, optimizer) == (
        "the weights are not finite (1 of 2 tensors, first linear.weight)"
    )
