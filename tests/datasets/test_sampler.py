from collections import Counter

import numpy as np
import pytest
import torch

from datasets.dataset import SampleKey
from datasets.sampler import IdentitySampler


def random_case(case: int) -> tuple[list[int], int, int]:
    """Shuffled person ids (not consecutive), K and P, with P at most the number of identities."""
    rng = np.random.default_rng(case)
    num_ids = int(rng.integers(1, 12))
    labels = rng.choice(100, num_ids, replace=False)
    counts = rng.integers(1, 15, num_ids)
    ids = rng.permutation(np.repeat(labels, counts)).tolist()
    return ids, int(rng.integers(1, 7)), int(rng.integers(1, num_ids + 1))


def make(ids: list[int], per_identity: int, per_batch: int, seed: int = 0) -> IdentitySampler:
    return IdentitySampler(ids, num_instances=per_identity, batch_size=per_identity * per_batch, seed=seed)


def indices(sampler: IdentitySampler) -> list[int]:
    return [key.index for key in sampler]


@pytest.mark.parametrize("case", range(60))
def test_invariants(case: int) -> None:
    ids, k, p = random_case(case)
    images = Counter(ids)
    chunks_of = {person: max(1, count // k) for person, count in images.items()}
    sampler = make(ids, k, p, seed=case)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        length = len(sampler)
        keys = list(sampler)
        assert len(keys) == length == len(sampler)
        assert length > 0
        assert length % (p * k) == 0

        chunks_used: Counter[int] = Counter()
        for start in range(0, length, p * k):
            batch = [key.index for key in keys[start : start + p * k]]
            chunks = [batch[i : i + k] for i in range(0, p * k, k)]
            owners = [{ids[index] for index in chunk} for chunk in chunks]
            assert all(len(owner) == 1 for owner in owners)
            assert len(set.union(*owners)) == p, "identities in a batch must be distinct"
            for chunk in chunks:
                person = ids[chunk[0]]
                chunks_used[person] += 1
                assert len(set(chunk)) == min(k, images[person])

        drawn: Counter[int] = Counter()
        for position, key in enumerate(keys):
            assert key == SampleKey(key.index, epoch, drawn[key.index], batch=position // (p * k))
            drawn[key.index] += 1
        assert all(times == 1 for index, times in drawn.items() if images[ids[index]] >= k)

        assert all(chunks_used[person] <= chunks_of[person] for person in images)
        with_chunks_left = sum(chunks_used[person] < chunks_of[person] for person in images)
        assert with_chunks_left < p, "the epoch ended although another batch could be made"


@pytest.mark.parametrize("case", range(10))
def test_order_depends_on_seed_and_epoch_alone(case: int) -> None:
    ids, k, p = random_case(case)
    sampler = make(ids, k, p, seed=3)
    sampler.set_epoch(5)
    list(sampler)
    torch.manual_seed(case)
    np.random.seed(case)
    sampler.set_epoch(2)
    fresh = make(ids, k, p, seed=3)
    fresh.set_epoch(2)
    assert list(sampler) == list(fresh)
    assert list(sampler) == list(fresh), "a second pass over the same epoch is the same"


def test_global_random_states_stay_as_they_were() -> None:
    np.random.seed(1)
    expected = np.random.rand()
    np.random.seed(1)
    torch_state = torch.get_rng_state()
    list(make([0, 0, 1, 1], 2, 2))
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.random.rand() == expected


def test_epochs_and_seeds_differ() -> None:
    ids = np.repeat(np.arange(10), 8).tolist()
    orders = []
    for seed in range(3):
        sampler = make(ids, 4, 2, seed)
        for epoch in range(3):
            sampler.set_epoch(epoch)
            orders.append(tuple(indices(sampler)))
    assert len(set(orders)) == 9


def test_everything_is_used_when_it_fits() -> None:
    assert sorted(indices(make([4, 7, 4, 7], 2, 2))) == [0, 1, 2, 3]
    # One identity per batch: 9 images give two chunks of 4, 2 images are filled up to 4.
    counts = Counter([0] * 9 + [1] * 2)
    assert len(make(list(counts.elements()), 4, 1)) == 3 * 4


def test_leftovers_and_fillers_change_over_epochs() -> None:
    sampler = make([0] * 5 + [1] * 3, 4, 2)
    left_out, doubled = set(), set()
    for epoch in range(100):
        sampler.set_epoch(epoch)
        drawn = Counter(indices(sampler))
        assert sum(drawn.values()) == 8
        left_out |= set(range(5)) - set(drawn)
        doubled |= {index for index in (5, 6, 7) if drawn[index] == 2}
    assert left_out == {0, 1, 2, 3, 4}
    assert doubled == {5, 6, 7}


def test_number_of_batches_may_change_and_len_follows() -> None:
    # Chunks 2, 1, 1 with two identities per batch: 2 batches, or 1 when the two single chunks meet first.
    sampler = make([0, 0, 1, 2], 1, 2)
    lengths = set()
    for epoch in range(50):
        sampler.set_epoch(epoch)
        assert len(sampler) == len(list(sampler))
        lengths.add(len(sampler))
    assert lengths == {2, 4}


def test_too_few_identities_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"needs 4 training identities, but there are 3; set .* to 6$"):
        IdentitySampler([0, 0, 1, 2], num_instances=2, batch_size=8, seed=0)
    IdentitySampler([0, 0, 1, 2], num_instances=2, batch_size=6, seed=0)  # the remedy works
    with pytest.raises(ValueError, match=r"there are 1; training needs 2 or more$"):
        IdentitySampler([0, 0], num_instances=2, batch_size=8, seed=0)


@pytest.mark.parametrize(("num_instances", "batch_size"), [(4, 10), (0, 8), (4, 0)])
def test_impossible_batch_is_an_error(num_instances: int, batch_size: int) -> None:
    with pytest.raises(ValueError, match=f"a batch of {batch_size} cannot be made of {num_instances}"):
        IdentitySampler([0, 1, 2], num_instances=num_instances, batch_size=batch_size, seed=0)
