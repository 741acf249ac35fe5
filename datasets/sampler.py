"""P identities × K images per batch: what the triplet loss needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from torch.utils.data import Sampler

from datasets.dataset import DatasetError, SampleKey


class IdentitySampler(Sampler[SampleKey]):
    """Orders the samples so that each `batch_size` in a row are P identities × K images.

    K is `num_instances`, P is `batch_size / num_instances`. For each epoch:

    1. The images of each identity are shuffled and cut into chunks of K.
    2. P identities are drawn at random, without repetition, from those that have chunks left, and each gives
       one chunk: a batch. Repeated as long as at least P identities have chunks left.

    Corner cases:

    - An identity with fewer than K images gives one chunk: each of its images once, then images of it drawn
      at random with replacement. Repeats have different `SampleKey.draw`.
    - An identity whose number of images is not a multiple of K leaves out the remainder, another one in each
      epoch.
    - When fewer than P identities have chunks left, these chunks are left out. Which ones depends on the
      draws, so the number of batches may differ from epoch to epoch. It is at least 1.

    The order depends on the seed and the epoch alone. `len` is the exact number of samples that the next
    iteration gives. Call `set_epoch` before each epoch; otherwise the same order comes again.

    With several processes each batch is cut into equal parts, and process number `rank` gets the samples of
    its part: together they see the same batches as one process.
    """

    def __init__(
        self,
        person_ids: Sequence[int],
        *,
        num_instances: int,
        batch_size: int,
        seed: int,
        rank: int = 0,
        num_processes: int = 1,
    ) -> None:
        """Group the samples by identity; `person_ids` has that of each, in the order of the data set."""
        # Check the sizes.
        if num_instances < 1 or batch_size < 1 or batch_size % num_instances:
            raise ValueError(f"a batch of {batch_size} cannot be made of {num_instances} images per identity")
        if batch_size % num_processes:
            raise DatasetError(
                f"SOLVER.IMS_PER_BATCH ({batch_size}) must be a multiple of the number of processes "
                f"({num_processes}), which share a batch; change it, or torchrun's --nproc_per_node"
            )
        # Keep them, and find the samples of each identity.
        self._batch_size = batch_size
        self._part_size = batch_size // num_processes
        self._rank = rank
        self._num_instances = num_instances
        self._ids_per_batch = batch_size // num_instances
        self._seed = seed
        self._epoch = 0
        self._first_batch = 0
        self._keys: list[SampleKey] | None = None  # the order of the current epoch, once it is needed
        ids = np.asarray(person_ids)
        self._rows_of_identity = [np.flatnonzero(ids == person_id) for person_id in np.unique(ids)]
        num_ids = len(self._rows_of_identity)
        if num_ids < self._ids_per_batch:
            remedy = f"set SOLVER.IMS_PER_BATCH to {num_ids * num_instances}"
            raise DatasetError(
                f"SOLVER.IMS_PER_BATCH {batch_size} with DATALOADER.NUM_INSTANCE {num_instances} needs "
                f"{self._ids_per_batch} training identities, but there are {num_ids}; "
                + (remedy if num_ids >= 2 else "training needs 2 or more")
            )

    def set_epoch(self, epoch: int, first_batch: int = 0) -> None:
        """Choose what the next iteration gives.

        Args:
            epoch: from 0; decides the order.
            first_batch: batches of the epoch to leave out, because an interrupted run has done them already.
        """
        if epoch != self._epoch:
            self._epoch = epoch
            self._keys = None
        self._first_batch = first_batch

    def __iter__(self) -> Iterator[SampleKey]:
        keys = self._keys_of_epoch()
        for start in range(self._first_batch * self._batch_size, len(keys), self._batch_size):
            first = start + self._rank * self._part_size
            yield from keys[first : first + self._part_size]

    def __len__(self) -> int:
        num_batches = len(self._keys_of_epoch()) // self._batch_size
        return max(0, num_batches - self._first_batch) * self._part_size

    def _keys_of_epoch(self) -> list[SampleKey]:
        if self._keys is None:
            times_drawn: Counter[int] = Counter()
            self._keys = []
            for position, index in enumerate(self._draw_order()):
                batch = position // self._batch_size
                self._keys.append(SampleKey(index, self._epoch, times_drawn[index], batch))
                times_drawn[index] += 1
        return self._keys

    def _draw_order(self) -> list[int]:
        rng = np.random.default_rng((self._seed, self._epoch))
        chunks = [self._cut_into_chunks(rows, rng) for rows in self._rows_of_identity]
        order: list[int] = []
        available = list(range(len(chunks)))
        while len(available) >= self._ids_per_batch:
            for identity in rng.choice(available, self._ids_per_batch, replace=False):
                order += chunks[identity].pop()
            available = [identity for identity in available if chunks[identity]]
        return order

    def _cut_into_chunks(self, rows: np.ndarray, rng: np.random.Generator) -> list[list[int]]:
        missing = max(0, self._num_instances - len(rows))
        shuffled = np.concatenate([rng.permutation(rows), rng.choice(rows, missing, replace=True)])
        num_chunks = len(shuffled) // self._num_instances
        return shuffled[: num_chunks * self._num_instances].reshape(num_chunks, -1).tolist()
