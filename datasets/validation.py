"""Training identities that are held out, so that the best epoch can be chosen without the test split."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import replace

import numpy as np

from datasets.dataset import DatasetError, Records, Splits
from structures import ImageRecord

GROUPS: dict[str, Callable[[ImageRecord], Hashable]] = {
    "camera": lambda record: record.camera_id,
    "scene": lambda record: record.scene_id,
    "none": lambda record: record.paths,
}
"""By protocol, what two triples of an identity must not share to be looked up in each other."""


def has_positive(query: Records, gallery: Records, protocol: str) -> bool:
    """Whether any query has a positive in the gallery that the protocol counts."""
    group = GROUPS[protocol]
    groups: defaultdict[int, set[Hashable]] = defaultdict(set)
    for record in gallery:
        groups[record.person_id].add(group(record))
    return any(groups[record.person_id] - {group(record)} for record in query)


def hold_out(splits: Splits, count: int, *, protocol: str, ids_per_batch: int) -> Splits:
    """Move some training identities, with all of their triples, to the validation split.

    Only identities that can be scored are taken: under the protocol, each of their triples has a positive.
    Of these, sorted by number, the choice is spread evenly. It depends on the data set and `count` alone:
    runs with other seeds, options or numbers of processes train and validate on the same identities. Those of
    a training batch must be left, and are numbered from 0 again, in the same order.
    """
    # Which identities have triples in two groups?
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
    # Choose the middles of equal parts of the list, and number the rest again.
    chosen = ((np.arange(count) + 0.5) * len(can_be_scored) / count).astype(int)
    held_out = {can_be_scored[index] for index in chosen}
    label = {person: new for new, person in enumerate(sorted(groups.keys() - held_out))}
    train = [replace(r, person_id=label[r.person_id]) for r in splits.train if r.person_id in label]
    validation = [record for record in splits.train if record.person_id in held_out]
    return splits._replace(train=tuple(train), validation=tuple(validation))
