from pathlib import Path

import numpy as np
import pytest

from datasets.dataset import DatasetError, Splits
from datasets.validation import has_positive, hold_out
from structures import ImageRecord, PerModality


def record(person: int, camera: int = 0, scene: int = 0, shot: int = 0) -> ImageRecord:
    path = Path(f"{person}_{camera}_{scene}_{shot}.jpg")
    return ImageRecord(PerModality(path, path, path), person, camera, scene)


def two_cameras(num_ids: int) -> tuple[ImageRecord, ...]:
    return tuple(record(person, camera) for person in range(num_ids) for camera in (0, 1))


def split(train: tuple[ImageRecord, ...], count: int, protocol: str = "camera") -> Splits:
    test = two_cameras(2)
    return hold_out(Splits(train, test, test), count, protocol=protocol, ids_per_batch=2)


def ids(records: tuple[ImageRecord, ...]) -> list[int]:
    return sorted({record.person_id for record in records})


def test_the_choice_is_spread_evenly_over_the_sorted_identities() -> None:
    # The middles of four parts of 5 identities each: 2.5, 7.5, 12.5 and 17.5, rounded down.
    assert ids(split(two_cameras(20), 4).validation) == [2, 7, 12, 17]
    assert ids(split(two_cameras(20)[::-1], 4).validation) == [2, 7, 12, 17]
    assert ids(split(two_cameras(6), 4).validation) == [0, 2, 3, 5]


def test_training_and_validation_share_no_file_and_lose_none() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        num_ids = int(rng.integers(4, 40))
        count = int(rng.integers(2, num_ids - 1))
        train = two_cameras(num_ids)
        found = split(train, count)
        files = [{record.paths for record in part} for part in (found.train, found.validation)]
        assert not files[0] & files[1]
        assert files[0] | files[1] == {record.paths for record in train}
        assert len(ids(found.validation)) == count
        assert ids(found.train) == list(range(num_ids - count))  # numbered from 0 without gaps
        # In the same order, and each file with the new number of its old identity.
        old = [int(record.name.partition("_")[0]) for record in found.train]
        assert old == sorted(old)
        assert len(set(zip(old, (record.person_id for record in found.train), strict=True))) == len(set(old))
        assert (found.query, found.gallery) == (two_cameras(2), two_cameras(2))


@pytest.mark.parametrize(
    ("protocol", "can_be_scored"),
    [("camera", [0, 1, 2]), ("scene", [3, 4, 5]), ("none", [0, 1, 2, 3, 4, 5, 6])],
)
def test_only_identities_that_can_be_scored_are_taken(protocol: str, can_be_scored: list[int]) -> None:
    cameras = [record(person, camera=place) for person in (0, 1, 2) for place in (0, 1)]
    scenes = [record(person, scene=place) for person in (3, 4, 5) for place in (0, 1)]
    one_place = [record(6, shot=shot) for shot in (0, 1)]
    lonely = [record(7), record(8)]
    train = (*cameras, *scenes, *one_place, *lonely)
    assert ids(split(train, len(can_be_scored), protocol).validation) == can_be_scored
    with pytest.raises(DatasetError, match=f"at most {len(can_be_scored)} identities can be held out"):
        split(train, len(can_be_scored) + 1, protocol)


def test_a_batch_must_be_left() -> None:
    assert len(split(two_cameras(6), 4).train) == 4
    message = (
        r"DATASETS\.VAL_IDS is 5, but at most 4 .*: of 6 training identities, 6 can be found again under the "
        r"protocol 'camera', and 2 must be left for a batch \(SOLVER\.IMS_PER_BATCH / DATALOADER\.NUM_INST"
    )
    with pytest.raises(DatasetError, match=message):
        split(two_cameras(6), 5)
    for few in (1, 3):  # of three identities one could be spared, which VAL_IDS does not take
        with pytest.raises(DatasetError, match="at most 0 identities"):
            split(two_cameras(few), 2)


@pytest.mark.parametrize(("protocol", "expected"), [("camera", False), ("scene", True), ("none", True)])
def test_a_positive_is_one_that_the_protocol_counts(protocol: str, expected: bool) -> None:
    """Both triples have camera 0, in two scenes; the gallery's other identity is never looked up."""
    query, gallery = (record(0, scene=0),), (record(0, scene=0), record(0, scene=1), record(1, camera=1))
    assert has_positive(query, gallery, protocol) is expected
    assert not has_positive(query, query, protocol), "the query itself"
    assert not has_positive((record(2),), gallery, protocol), "an identity that the gallery lacks"
