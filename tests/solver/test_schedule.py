from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.optim import SGD, Optimizer

from solver.schedule import build_schedule

RATES = (1e-3, 2e-3, 1e-5)
SETTINGS: dict[str, Any] = {
    "epochs": 20,
    "base_lr": 1e-3,
    "warmup_epochs": 4,
    "noise": False,
    "proportional_warmup": False,
}


def make_optimizer() -> Optimizer:
    return SGD([{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in RATES])


def rates_by_epoch(**changes: Any) -> list[list[float]]:
    optimizer = make_optimizer()
    schedule = build_schedule(optimizer, **(SETTINGS | changes))
    rates = []
    for epoch in range(1, SETTINGS["epochs"] + 1):
        schedule.step(epoch)
        rates.append([group["lr"] for group in optimizer.param_groups])
    return rates


def test_warm_up_and_cosine_by_hand() -> None:
    rates = rates_by_epoch()
    for rate, column in zip(RATES, zip(*rates, strict=True), strict=True):
        for epoch in (1, 2, 3):
            assert column[epoch - 1] == pytest.approx(1e-4 + epoch / 4 * (rate - 1e-4))
        for epoch in (4, 10, 19, 20):
            share = 0.5 * (1 + math.cos(math.pi * epoch / 20))
            assert column[epoch - 1] == pytest.approx(1e-6 + share * (rate - 1e-6))
    assert rates[0][2] > RATES[2], "without proportional warm-up a slow group starts above its own rate"


def test_proportional_groups_keep_their_ratio() -> None:
    plain, proportional = rates_by_epoch(), rates_by_epoch(proportional_warmup=True)
    for plain_row, row in zip(plain, proportional, strict=True):
        assert row[0] == pytest.approx(plain_row[0]), "a group at the base rate is not touched"
        assert [value / row[0] for value in row] == pytest.approx([rate / RATES[0] for rate in RATES])
    assert proportional[0] == pytest.approx([(0.1 + 0.9 / 4) * rate for rate in RATES])
    assert proportional[-1] == pytest.approx([0.001 * rate for rate in RATES])


@pytest.mark.parametrize("proportional", [False, True])
def test_without_warm_up_the_cosine_starts_at_once(proportional: bool) -> None:
    rates = rates_by_epoch(warmup_epochs=0, proportional_warmup=proportional)
    assert rates[0] == pytest.approx(RATES, rel=0.01)


def test_noise_is_one_factor_per_epoch_and_spares_the_last() -> None:
    factors = [
        [noisy / plain for noisy, plain in zip(noisy_row, plain_row, strict=True)]
        for noisy_row, plain_row in zip(rates_by_epoch(noise=True), rates_by_epoch(), strict=True)
    ]
    for row in factors:
        assert row == pytest.approx([row[0]] * 3)
        assert 0.33 < row[0] < 1.67
    assert len({round(row[0], 6) for row in factors[:-1]}) > 10
    assert factors[-1][0] == pytest.approx(1.0)


@pytest.mark.parametrize("proportional", [False, True])
def test_resuming_goes_on_with_the_same_rates(proportional: bool) -> None:
    settings = SETTINGS | {"noise": True, "proportional_warmup": proportional}
    whole = rates_by_epoch(noise=True, proportional_warmup=proportional)
    optimizer = make_optimizer()
    schedule = build_schedule(optimizer, **settings)
    for epoch in range(1, 8):
        schedule.step(epoch)

    resumed_optimizer = make_optimizer()
    resumed = build_schedule(resumed_optimizer, **settings)
    resumed_optimizer.load_state_dict(optimizer.state_dict())
    resumed.load_state_dict(schedule.state_dict())
    rebuilt_optimizer = make_optimizer()  # the other way round: weights first, schedule after
    rebuilt_optimizer.load_state_dict(optimizer.state_dict())
    rebuilt = build_schedule(rebuilt_optimizer, **settings)
    for epoch in range(8, 21):
        for second_schedule, second in ((resumed, resumed_optimizer), (rebuilt, rebuilt_optimizer)):
            second_schedule.step(epoch)
            assert [group["lr"] for group in second.param_groups] == pytest.approx(whole[epoch - 1])
