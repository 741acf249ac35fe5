"""Training identities that are held out, so that the best epoch can be chosen without the test split."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

import numpy as np
from typing_extensions import NamedTuple

from datasets.dataset import DatasetError, Splits
from structures import ImageRecord

GROUPS: dict[str, Callable[[ImageRecord], Hashable]] = {
    "camera": lambda record: record.camera_id,
    "scene": lambda record: record.scene_id,
    "none": lambda record: record.paths,
}
"""By protocol, what two triples of an identity must not share to be looked up in each other."""


class HeldOutSplits(NamedTuple):
    """The splits of a reader, and what is held out of training.

    Attributes:
        train: see `Splits`.
        query: see `Splits`.
        gallery: see `Splits`.
        validation: records that were in `train`; they are looked up in each other.
    """

    train: tuple[ImageRecord, ...]
    query: tuple[ImageRecord, ...]
    gallery: tuple[ImageRecord, ...]
    validation: tuple[ImageRecord, ...] = ()


def hold_out(splits: Splits, count: int, *, protocol: str, ids_per_batch: int) -> HeldOutSplits:
    """Move some training identities, with all of their triples, to the validation split.

    Only identities that can be scored are taken: under the protocol, each of their triples has a right match.
    Of these, sorted by number, the choice is spread evenly. It depends on the data set and `count` alone:
    runs with other seeds, settings or numbers of processes train and validate on the same identities.

    Args:
        splits: as read.
        count: identities to hold out.
        protocol: see `RetrievalSet`.
        ids_per_batch: identities that must be left, since a training batch is made of so many.

    Returns:
        The splits; the identities that are left are numbered from 0 again, in the same order.
    """
    groups: defaultdict[int, set[Hashable]] = defaultdict(set)
    for record in splits.train:
        groups[record.person_id].add(GROUPS[protocol](record))
    can_be_scored = sorted(person for person, found in groups.items() if len(found) > 1)
    most = min(len(can_be_scored), len(groups) - ids_per_batch)
    if count > most:
        most = most if most >= 2 else 0  # one alone is always found
        raise DatasetError(
            f"DATASETS.VAL_IDS is {count}, but at most {most} identities can be held out: of "
            f"{len(groups)} training identities, {len(can_be_scored)} can be found again under the protocol "
            f"{protocol!r}, and {ids_per_batch} must be left for a batch "
            "(SOLVER.IMS_PER_BATCH / DATALOADER.NUM_INSTANCE)"
        )
    held_out = {can_be_scored[place] for place in _spread(len(can_be_scored), count)}
    label = {person: new for new, person in enumerate(sorted(groups.keys() - held_out))}
    train = [replace(r, person_id=label[r.person_id]) for r in splits.train if r.person_id in label]
    validation = [record for record in splits.train if record.person_id in held_out]
    return HeldOutSplits(tuple(train), splits.query, splits.gallery, tuple(validation))


def _spread(available: int, wanted: int) -> Sequence[int]:
    """`wanted` places in [0, available), each once: the middles of equal parts."""
    return ((np.arange(wanted) + 0.5) * available / wanted).astype(int).tolist()
