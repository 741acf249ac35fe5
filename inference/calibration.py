"""Same person or not: the distance below which two triples match, for a chosen false-match rate."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from errors import UserError
from inference.origin import Origin
from structures import Modality

FEWEST = 10
"""False matches that a rate must let expect, so that it can be measured."""
CURVE = 200  # points
CHUNK = 2**22  # distances that are held at once
BINS = 2**20  # in which distances are counted, from 0 to 2
WIDTH = 2 / BINS  # of a bin: a power of 2, so that its edges are exact in float32
RESAMPLES = 1000
CONFIDENCE = 0.95


class CalibrationError(UserError):
    """These pairs do not give a threshold."""


class Pairs(NamedTuple):
    """Some pairs of triples, and the identities that they are of, counted from 0."""

    distances: np.ndarray  # (P,)
    first: np.ndarray  # (P,)
    second: np.ndarray  # (P,)

    @property
    def same(self) -> np.ndarray:
        """(P,) whether both triples are of one identity."""
        return np.asarray(self.first == self.second)


@dataclass(frozen=True)
class Calibration:
    """A threshold, how well it separates, and what it was measured on."""

    threshold: float  # two triples match if the distance of their descriptors is not above it
    false_match_rate: float  # share of the pairs of different people that match
    false_match_interval: tuple[float, float]  # 95 % interval, by resampling identities
    false_non_match_rate: float  # share of the pairs of one person that do not match
    false_non_match_interval: tuple[float, float]
    pairs_of_different_people: int
    pairs_of_one_person: int
    identities: int
    curve: Mapping[str, list[float]]  # by growing threshold; empty where modalities are missing


def name_modalities(modalities: Collection[Modality]) -> str:
    """The name of a combination of modalities in a calibration, such as `RGB+TI`."""
    return "+".join(modality.value for modality in Modality if modality in modalities)


class PairsAcross(NamedTuple):
    """The pairs of triples from different groups (cameras, or scenes), each pair once, some at a time."""

    features: np.ndarray  # (n, D), of length 1
    numbers: np.ndarray  # (n,) identities, counted from 0
    groups: np.ndarray  # (n,)

    @classmethod
    def of(cls, features: np.ndarray, ids: np.ndarray, groups: np.ndarray) -> PairsAcross:
        """Of triples of any identities."""
        return cls(features, np.unique(ids, return_inverse=True)[1], groups)

    def chunks(self) -> Iterator[Pairs]:
        """The pairs of some triples with all later ones; they are computed again each time."""
        size = max(1, CHUNK // max(1, len(self.features)))
        for start in range(0, len(self.features), size):
            rows, later = self.features[start : start + size], self.features[start:]
            # The descriptors have length 1; float64 keeps the digits of small distances.
            squares = 2 - 2 * (rows.astype(np.float64) @ later.T.astype(np.float64))
            is_pair = self.groups[start : start + size, None] != self.groups[None, start:]
            is_pair &= np.arange(len(rows))[:, None] < np.arange(len(later))[None]
            row, column = np.nonzero(is_pair)
            distances = np.sqrt(np.maximum(squares[row, column], 0)).astype(np.float32)
            yield Pairs(distances, self.numbers[start + row], self.numbers[start + column])


class PairSource(Protocol):
    """What gives pairs, as often as it is asked."""

    def chunks(self) -> Iterator[Pairs]:
        """All pairs, some at a time."""


def calibrate(pairs: PairSource, rate: float) -> Calibration:
    """The largest threshold at which at most the share `rate` of the pairs of different people match.

    It is found to 2e-6. Memory does not grow with the number of pairs, but with that of identities squared.

    Raises:
        CalibrationError: there are too few pairs for this rate, or they cannot be told apart.
    """
    # How many pairs there are at each distance.
    positives, negatives = np.zeros((2, BINS), dtype=np.int64)
    size = 0
    for part in pairs.chunks():
        bins, same = np.minimum((part.distances / WIDTH).astype(np.int64), BINS - 1), part.same
        positives += np.bincount(bins[same], minlength=BINS)
        negatives += np.bincount(bins[~same], minlength=BINS)
        size = max(size, 1 + int(part.first.max(initial=-1)), 1 + int(part.second.max(initial=-1)))
    count, own_count = int(negatives.sum()), int(positives.sum())
    # Are there enough to measure such a rate?
    if not own_count:
        raise CalibrationError(
            "no two triples of one person are from different cameras; nothing can be calibrated"
        )
    if rate * count < FEWEST:
        raise CalibrationError(
            f"--fmr {rate:g} cannot be measured: {count} pairs of different people let expect "
            f"{rate * count:.1f} false matches, and {FEWEST} are needed; choose "
            f"{FEWEST / max(count, 1):.1e} or more, or hold out more identities (DATASETS.VAL_IDS)"
        )
    # The bins that may match, and the largest number in the last of them.
    matched, own_matched = negatives.cumsum(), positives.cumsum()
    num_bins = int(np.searchsorted(matched, rate * count, "right"))
    if not num_bins:
        raise CalibrationError("the descriptors of different people are equal; the model has learned nothing")
    threshold = float(np.nextafter(np.float32(num_bins * WIDTH), np.float32(-1)))
    # The curve, at distances evenly spread over the ranks of both kinds of pairs.
    shares = np.linspace(0, 1, CURVE // 2)
    points = np.unique(
        [np.searchsorted(sums, np.ceil(shares * sums[-1]).clip(1)) for sums in (matched, own_matched)]
    )
    curve = {
        "threshold": (WIDTH * (points + 1)).tolist(),
        "false_match_rate": (matched[points] / count).tolist(),
        "false_non_match_rate": (1 - own_matched[points] / own_count).tolist(),
    }
    false_matches, false_non_matches = _resample(pairs, threshold, size)
    return Calibration(
        threshold=threshold,
        false_match_rate=float(matched[num_bins - 1] / count),
        false_match_interval=false_matches,
        false_non_match_rate=float(1 - own_matched[num_bins - 1] / own_count),
        false_non_match_interval=false_non_matches,
        pairs_of_different_people=count,
        pairs_of_one_person=own_count,
        identities=size,
        curve=curve,
    )


def _resample(
    pairs: PairSource, threshold: float, size: int
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Intervals of both rates at a fixed threshold, by drawing identities with replacement.

    Pairs share triples, so that they are not independent; identities are. A pair of identities that were
    drawn m and n times counts m n times.
    """
    # Pairs, and those that match, of each identity with each; the diagonal are those of one person.
    total, matched = np.zeros((2, size, size))
    for part in pairs.chunks():
        cells = part.first.astype(np.int64) * size + part.second
        for counts, chosen in ((total, cells), (matched, cells[part.distances <= threshold])):
            counts += np.bincount(chosen, minlength=size * size).reshape(size, size)
    own_pairs, own_matched = total.diagonal().copy(), matched.diagonal().copy()
    np.fill_diagonal(total, 0)
    np.fill_diagonal(matched, 0)
    rng = np.random.default_rng(0)
    draws = rng.multinomial(size, np.full(size, 1 / size), RESAMPLES).astype(np.float64)
    with np.errstate(invalid="ignore"):  # a draw without any pair
        of_others = ((draws @ matched) * draws).sum(axis=1) / ((draws @ total) * draws).sum(axis=1)
        of_same = draws @ (own_pairs - own_matched) / (draws @ own_pairs)
    ends = (1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2
    (low, high), (own_low, own_high) = (
        np.nanquantile(rates, ends).tolist() for rates in (of_others, of_same)
    )
    return (low, high), (own_low, own_high)


def load_calibration(path: Path, origin: Origin) -> dict[str, Calibration]:
    """Read a file of tools.calibrate, by the modalities that a threshold is for, see `name_modalities`.

    It is refused unless it was made with this origin.
    """
    try:
        content: dict[str, Any] = json.loads(path.read_text())
        origin.check(content.pop("origin"), path)
        found = {name: Calibration(**values) for name, values in content["thresholds"].items()}
        if not all(0 <= float(each.threshold) <= 2 for each in found.values()):
            raise ValueError
        return found
    except OSError as error:
        raise UserError(f"the calibration {path} cannot be read: {error.strerror}") from None
    except UserError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UserError(f"{path} is not a calibration of tools.calibrate; make it again") from None
