"""Thresholds and rates, worked by hand."""

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from errors import UserError
from inference.calibration import Pairs, PairsAcross, calibrate, load_calibration, name_modalities
from inference.origin import Origin
from structures import Modality

ORIGIN = Origin("best.pth", "ab" * 32, 3, {})


class Listed:
    """Pairs that are given, in two parts."""

    def __init__(self, *pairs: tuple[float, int, int]) -> None:
        self.pairs = pairs

    def chunks(self) -> Iterator[Pairs]:
        for part in (self.pairs[::2], self.pairs[1::2]):
            distances, first, second = np.array(part).reshape(-1, 3).T
            yield Pairs(distances.astype(np.float32), first.astype(int), second.astype(int))


def make_pairs(same: list[float], other: list[float], num_ids: int = 5) -> Listed:
    """Pairs at given distances; the identities take turns."""
    own = [(distance, n % num_ids, n % num_ids) for n, distance in enumerate(same)]
    others = [(distance, n % num_ids, (n + 1) % num_ids) for n, distance in enumerate(other)]
    return Listed(*own, *others)


def test_pairs_across_cameras(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four points on the circle; the pairs within a camera, rows 0 and 2, 1 and 3, are left out."""
    angles = np.array([0, math.pi / 2, math.pi, 3 * math.pi / 2])
    features = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    ids, cameras = np.array([7, 7, 9, 9]), np.array([0, 1, 0, 1])
    for chunk, sizes in ((1024, [4]), (12, [4, 0]), (1, [2, 1, 1, 0])):
        monkeypatch.setattr("inference.calibration.CHUNK", chunk)
        parts = list(PairsAcross.of(features, ids, cameras).chunks())
        assert [len(part.distances) for part in parts] == sizes
        found = [row for part in parts for row in zip(*map(np.ndarray.tolist, part), strict=True)]
        assert [row[0] for row in found] == pytest.approx([2**0.5] * 4)
        assert sorted(row[1:] for row in found) == [(0, 0), (0, 1), (0, 1), (1, 1)]


def test_memory_does_not_grow_with_the_pairs() -> None:
    """2,000 triples have 1.5 million pairs across cameras; a chunk holds few of them."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((2000, 8)).astype(np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    source = PairsAcross.of(features, rng.integers(0, 50, 2000), rng.integers(0, 4, 2000))
    whole = Listed(*(row for part in source.chunks() for row in zip(*part, strict=True)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("inference.calibration.CHUNK", 2**16)
        assert max(len(part.distances) for part in source.chunks()) < 2**16
        found = calibrate(source, 1e-3)
    assert found == calibrate(whole, 1e-3)
    assert found.false_match_rate == pytest.approx(1e-3, rel=0.01)


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
    ids = [(a, b) for a in range(10) for b in range(a)] * 10
    others = [(0.2 if pair == (1, 0) else 0.9, *pair) for pair in ids]
    found = calibrate(Listed(*((0.1, n, n) for n in range(10)), *others), 0.0245)
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


def test_names_of_modalities_are_in_one_order() -> None:
    assert name_modalities([Modality.TI, Modality.RGB]) == "RGB+TI"


def test_the_file(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    found = calibrate(make_pairs([0.1] * 5, [0.01 * n for n in range(1, 101)]), 0.2)
    values, other = asdict(found), asdict(replace(found, threshold=0.5, curve={}))
    content: dict[str, Any] = {"origin": ORIGIN.as_dict(), "split": "validation"}
    path.write_text(json.dumps({**content, "thresholds": {"RGB+TI": values, "RGB": other}}))
    read = load_calibration(path, ORIGIN)
    assert {name: each.threshold for name, each in read.items()} == {"RGB+TI": found.threshold, "RGB": 0.5}
    with pytest.raises(UserError, match="was made with return pattern 3, not 1"):
        load_calibration(path, replace(ORIGIN, pattern=1))
    with pytest.raises(UserError, match="was made with no PCA, not the PCA cdcdcdcd"):
        load_calibration(path, replace(ORIGIN, pca="cd" * 32))
    with pytest.raises(UserError, match="cannot be read: No such file"):
        load_calibration(tmp_path / "no.json", ORIGIN)
    near = {**content, "thresholds": {"RGB": {**values, "threshold": "near"}}}
    of_one_threshold = {**content, **values}  # as before each combination of modalities had its own
    for broken in ("", "[]", "{}", '{"origin": {}}', json.dumps(near), json.dumps(of_one_threshold)):
        path.write_text(broken)
        with pytest.raises(UserError, match=r"is not a calibration of tools\.calibrate; make it again"):
            load_calibration(path, ORIGIN)
