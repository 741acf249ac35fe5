"""Thresholds and rates, worked by hand."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from errors import UserError
from inference.calibration import Pairs, calibrate, load_calibration, pair_up
from inference.origin import Origin

ORIGIN = Origin("best.pth", "ab" * 32, 3, {})


def make_pairs(same: list[float], other: list[float], num_ids: int = 5) -> Pairs:
    """Pairs at given distances; the identities take turns."""
    first = np.arange(len(other)) % num_ids
    others = np.stack([first, (first + 1) % num_ids], axis=1)
    return Pairs(
        np.array(same, np.float32), np.arange(len(same)) % num_ids, np.array(other, np.float32), others
    )


def test_pairs_across_cameras(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four points on the circle; the pairs within a camera, rows 0 and 2, 1 and 3, are left out."""
    angles = np.array([0, math.pi / 2, math.pi, 3 * math.pi / 2])
    features = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    ids, cameras = np.array([7, 7, 9, 9]), np.array([0, 1, 0, 1])
    for chunk in (1024, 3, 1):
        monkeypatch.setattr("inference.calibration.CHUNK", chunk)
        pairs = pair_up(features, ids, cameras)
        np.testing.assert_allclose(pairs.same, [2**0.5, 2**0.5], rtol=1e-6)
        np.testing.assert_allclose(pairs.other, [2**0.5, 2**0.5], rtol=1e-6)
        assert pairs.same_ids.tolist() == [0, 1]
        assert sorted(map(tuple, pairs.other_ids.tolist())) == [(0, 1), (0, 1)]


def test_worked_by_hand() -> None:
    """Negatives at 0.01 … 1.00: a tenth may match, up to 0.10. Of four positives, one is farther."""
    pairs = make_pairs([0.02, 0.05, 0.1, 0.5], [0.01 * n for n in range(1, 101)])
    found = calibrate(pairs, 0.1)
    assert np.float32(0.1) <= found.threshold < np.float32(0.11)
    assert found.false_match_rate == pytest.approx(0.1)
    assert found.false_non_match_rate == 0.25
    assert (found.pairs_of_different_people, found.pairs_of_one_person, found.identities) == (100, 4, 5)
    assert found.false_match_interval == pytest.approx((0.1, 0.1))  # no identity differs from another
    curve = {name: np.array(values) for name, values in found.curve.items()}
    assert (np.diff(curve["threshold"]) > 0).all()
    assert (np.diff(curve["false_match_rate"]) >= 0).all()
    assert (np.diff(curve["false_non_match_rate"]) <= 0).all()
    index = int(np.abs(curve["threshold"] - 0.5).argmin())
    assert curve["false_match_rate"][index] == pytest.approx(0.5, abs=0.02)
    assert calibrate(pairs, 0.1) == found


def test_equal_distances_never_exceed_the_rate() -> None:
    found = calibrate(make_pairs([0.1] * 5, [0.2] * 5 + [0.5] * 15 + [0.9] * 80), 0.1)
    assert found.false_match_rate == 0.05  # with one pair at 0.5 all 15 would match
    assert 0.2 <= found.threshold < 0.5


def test_identities_are_resampled_and_not_pairs() -> None:
    """All false matches are between two of ten identities: as pairs, 95 % would be 0.07 … 0.13."""
    ids = np.array([(a, b) for a in range(10) for b in range(a)] * 10)
    is_twin = (ids == [1, 0]).all(axis=1)
    pairs = Pairs(
        np.full(10, 0.1, np.float32), np.arange(10), np.where(is_twin, 0.2, 0.9).astype(np.float32), ids
    )
    found = calibrate(pairs, 0.0245)
    assert found.false_match_rate == pytest.approx(10 / 450)
    low, high = found.false_match_interval
    assert low == 0
    assert high > 0.08


@pytest.mark.parametrize(
    ("same", "other", "rate", "message"),
    [
        ([0.1], [0.5] * 99, 0.1, r"99 pairs of different people let expect 9\.9 false matches, and 10 are"),
        ([0.1], [], 0.5, "0 pairs of different people"),
        ([], [0.5] * 100, 0.5, "no two triples of one person are from different cameras"),
        ([0.0], [0.0] * 100, 0.1, "the descriptors of different people are equal"),
    ],
)
def test_what_cannot_be_measured(same: list[float], other: list[float], rate: float, message: str) -> None:
    with pytest.raises(UserError, match=message):
        calibrate(make_pairs(same, other), rate)


def test_the_file(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    found = calibrate(make_pairs([0.1] * 5, [0.01 * n for n in range(1, 101)]), 0.2)
    content: dict[str, Any] = {**asdict(found), "origin": ORIGIN.as_dict(), "split": "validation"}
    path.write_text(json.dumps(content))
    assert load_calibration(path, ORIGIN).threshold == found.threshold
    with pytest.raises(UserError, match="was made with return pattern 3, not 1"):
        load_calibration(path, replace(ORIGIN, pattern=1))
    with pytest.raises(UserError, match="was made with no PCA, not the PCA cdcdcdcd"):
        load_calibration(path, replace(ORIGIN, pca="cd" * 32))
    with pytest.raises(UserError, match="cannot be read: No such file"):
        load_calibration(tmp_path / "no.json", ORIGIN)
    for broken in ("", "[]", "{}", json.dumps({**content, "threshold": "near"}), json.dumps({"origin": {}})):
        path.write_text(broken)
        with pytest.raises(UserError, match=r"is not a calibration of tools\.calibrate"):
            load_calibration(path, ORIGIN)
