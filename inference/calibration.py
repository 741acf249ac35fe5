"""Same person or not: the distance below which two triples match, for a chosen false-match rate."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from errors import UserError
from inference.origin import Origin

FEWEST = 10
"""False matches that a rate must let expect, so that it can be measured."""
CURVE = 200  # points
CHUNK = 1024  # triples whose distances are held at once
RESAMPLES = 1000
CONFIDENCE = 0.95


class Pairs(NamedTuple):
    """The distances of all pairs across groups, and the identities that they are of, counted from 0."""

    same: np.ndarray  # (P,) distances between triples of one identity
    same_ids: np.ndarray  # (P,)
    other: np.ndarray  # (M,) distances between triples of two identities
    other_ids: np.ndarray  # (M, 2)


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
    curve: Mapping[str, list[float]]  # by growing threshold


def pair_up(features: np.ndarray, ids: np.ndarray, groups: np.ndarray) -> Pairs:
    """The pairs of triples (n, D) from different groups (cameras, or scenes), each pair once."""
    _, numbers = np.unique(ids, return_inverse=True)
    parts = list(_pair_chunks(features, numbers, groups))
    distances, first, second = map(np.concatenate, zip(*parts, strict=True))
    is_same = first == second
    others = np.stack([first[~is_same], second[~is_same]], axis=1)
    return Pairs(distances[is_same], first[is_same], distances[~is_same], others)


def _pair_chunks(
    features: np.ndarray, numbers: np.ndarray, groups: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Distances and the two identities of the pairs of some rows with all later rows."""
    for start in range(0, len(features), CHUNK):
        rows = features[start : start + CHUNK]
        # The descriptors have length 1; float64 keeps the digits of small distances.
        squares = 2 - 2 * (rows.astype(np.float64) @ features[start:].T.astype(np.float64))
        is_pair = groups[start : start + CHUNK, None] != groups[None, start:]
        is_pair &= np.arange(len(rows))[:, None] < np.arange(len(features) - start)[None]
        row, column = np.nonzero(is_pair)
        distances = np.sqrt(np.maximum(squares[row, column], 0)).astype(np.float32)
        yield distances, numbers[start + row].astype(np.int32), numbers[start + column].astype(np.int32)


def calibrate(pairs: Pairs, rate: float) -> Calibration:
    """The largest threshold at which at most the share `rate` of the pairs of different people match."""
    # Are there enough pairs to measure such a rate?
    count = len(pairs.other)
    if not len(pairs.same):
        raise UserError("no two triples of one person are from different cameras; nothing can be calibrated")
    if rate * count < FEWEST:
        raise UserError(
            f"--fmr {rate:g} cannot be measured: {count} pairs of different people let expect "
            f"{rate * count:.1f} false matches, and {FEWEST} are needed; choose "
            f"{FEWEST / max(count, 1):.1e} or more, or hold out more identities (DATASETS.VAL_IDS)"
        )
    # Just below the first negative that must not match.
    negatives, positives = np.sort(pairs.other), np.sort(pairs.same)
    threshold = float(np.nextafter(negatives[int(rate * count)], np.float32(-1)))
    if threshold < 0:
        raise UserError("the descriptors of different people are equal; the model has not learnt anything")
    # The curve, at distances evenly spread over the ranks of both kinds of pairs.
    shares = np.linspace(0, 1, CURVE // 2)
    points = np.unique([np.quantile(negatives, shares), np.quantile(positives, shares)])
    curve = {
        "threshold": points.tolist(),
        "false_match_rate": (np.searchsorted(negatives, points, "right") / count).tolist(),
        "false_non_match_rate": (1 - np.searchsorted(positives, points, "right") / len(positives)).tolist(),
    }
    matches, misses = pairs.other <= threshold, pairs.same > threshold
    false_matches, false_non_matches = _resample(pairs, matches, misses)
    return Calibration(
        threshold=threshold,
        false_match_rate=float(matches.mean()),
        false_match_interval=false_matches,
        false_non_match_rate=float(misses.mean()),
        false_non_match_interval=false_non_matches,
        pairs_of_different_people=count,
        pairs_of_one_person=len(pairs.same),
        identities=1 + int(pairs.other_ids.max()),
        curve=curve,
    )


def _resample(
    pairs: Pairs, matches: np.ndarray, misses: np.ndarray
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Intervals of both rates at a fixed threshold, by drawing identities with replacement.

    Pairs share triples, so that they are not independent; identities are. A pair of identities that were
    drawn m and n times counts m n times.
    """
    size = 1 + int(pairs.other_ids.max())
    cells = pairs.other_ids[:, 0].astype(np.int64) * size + pairs.other_ids[:, 1]
    all_pairs, found = (
        np.bincount(cells, weights, size * size).reshape(size, size) for weights in (None, matches)
    )
    own_pairs, missed = (np.bincount(pairs.same_ids, weights, size) for weights in (None, misses))
    rng = np.random.default_rng(0)
    draws = rng.multinomial(size, np.full(size, 1 / size), RESAMPLES).astype(np.float64)
    with np.errstate(invalid="ignore"):  # a draw without any pair
        of_others = ((draws @ found) * draws).sum(axis=1) / ((draws @ all_pairs) * draws).sum(axis=1)
        of_same = draws @ missed / (draws @ own_pairs)
    ends = (1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2
    (low, high), (own_low, own_high) = (
        np.nanquantile(rates, ends).tolist() for rates in (of_others, of_same)
    )
    return (low, high), (own_low, own_high)


def load_calibration(path: Path, origin: Origin) -> Calibration:
    """Read a file of tools.calibrate; it is refused unless it was made with this origin."""
    try:
        content: dict[str, Any] = json.loads(path.read_text())
        origin.check(content.pop("origin"), path)
        names = Calibration.__dataclass_fields__
        found = Calibration(**{name: content[name] for name in names})
        if not 0 <= float(found.threshold) <= 2:
            raise ValueError
        return found
    except OSError as error:
        raise UserError(f"the calibration {path} cannot be read: {error.strerror}") from None
    except UserError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UserError(f"{path} is not a calibration of tools.calibrate; make it again") from None
