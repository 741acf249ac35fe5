from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from evaluation.evaluator import RetrievalEvaluator
from evaluation.ranking import rank, rank_distances
from evaluation.rerank import rerank
from structures import HeadOutput, ModalBatch, ModelOutput, PerModality, Role, Selection

NUM_SAMPLES, DIM = 24, 5


def make_head(name: str, features: Tensor, *, fused: bool) -> HeadOutput:
    return HeadOutput(
        name,
        torch.zeros(len(features), 3),
        features,
        features.flip(0),
        Role.FUSED if fused else Role.ORIGINAL,
    )


@pytest.fixture
def original() -> Tensor:
    return torch.randn(NUM_SAMPLES, DIM, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def fused() -> Tensor:
    # Much longer than the original features, so that it matters where they are normalised.
    return 30 * torch.randn(NUM_SAMPLES, DIM, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def batch() -> ModalBatch:
    rows = torch.arange(NUM_SAMPLES)
    return ModalBatch(
        images=PerModality.build(lambda _: torch.zeros(NUM_SAMPLES, 3, 8, 4)),
        person_ids=rows % 4,
        camera_ids=rows // 4 % 2,
        scene_ids=rows // 8,
        names=tuple(f"{row:02}.jpg" for row in rows.tolist()),
    )


def piece(batch: ModalBatch, rows: slice, masks: Tensor | None = None) -> ModalBatch:
    return ModalBatch(
        images=batch.images.map(lambda images: images[rows]),
        person_ids=batch.person_ids[rows],
        camera_ids=batch.camera_ids[rows],
        scene_ids=batch.scene_ids[rows],
        names=batch.names[rows],
        person_masks=masks,
    )


def make_evaluator(
    *,
    protocol: str = "camera",
    normalise: bool = False,
    after_neck: bool = False,
    re_rank: bool = False,
) -> RetrievalEvaluator:
    return RetrievalEvaluator(
        range(8),
        range(NUM_SAMPLES),
        protocol=protocol,
        normalise=normalise,
        after_neck=after_neck,
        re_rank=re_rank,
    )


def expected_map(features: Tensor, batch: ModalBatch, groups: Tensor) -> float:
    array, ids, group = features.numpy(), batch.person_ids.numpy(), groups.numpy()
    return rank(array[:8], array, ids[:8], ids, group[:8], group).mean_ap


def test_every_pattern_from_batches_of_different_size(
    original: Tensor, fused: Tensor, batch: ModalBatch
) -> None:
    evaluator = make_evaluator()
    for rows in (slice(0, 10), slice(10, 20), slice(20, NUM_SAMPLES)):
        heads = (make_head("ori", original[rows], fused=False), make_head("moe", fused[rows], fused=True))
        evaluator.update(ModelOutput(heads), piece(batch, rows))

    samples = evaluator.collected()
    assert evaluator.num_samples == NUM_SAMPLES
    both = torch.cat([original, fused], dim=1)
    assert {p: tuple(f.shape) for p, f in samples.features.items()} == {1: (24, 5), 2: (24, 5), 3: (24, 10)}
    assert torch.equal(samples.features[3], both)
    assert samples.names == batch.names
    assert torch.equal(samples.scene_ids, batch.scene_ids)

    metrics = evaluator.compute()
    assert list(metrics) == [1, 2, 3]
    for pattern, features in ((1, original), (2, fused), (3, both)):
        assert metrics[pattern].mean_ap == expected_map(features, batch, batch.camera_ids)
        assert metrics[pattern].num_queries == 8


def test_a_pattern_is_normalised_as_a_whole(original: Tensor, fused: Tensor, batch: ModalBatch) -> None:
    heads = (make_head("ori", original, fused=False), make_head("moe", fused, fused=True))
    evaluator = make_evaluator(normalise=True)
    evaluator.update(ModelOutput(heads), batch)
    both = torch.cat([original, fused], dim=1)
    as_a_whole = both / both.norm(dim=1, keepdim=True)
    by_part = torch.cat([f / f.norm(dim=1, keepdim=True) for f in (original, fused)], dim=1)
    wanted, others = (expected_map(f, batch, batch.camera_ids) for f in (as_a_whole, by_part))
    assert abs(wanted - others) > 1e-3, "the example must tell the two apart"
    assert evaluator.compute()[3].mean_ap == pytest.approx(wanted, abs=1e-9)


def test_without_a_fusion_part_there_is_one_pattern(original: Tensor, batch: ModalBatch) -> None:
    evaluator = make_evaluator()
    evaluator.update(ModelOutput((make_head("ori", original, fused=False),)), batch)
    assert list(evaluator.compute()) == [1]


def test_scene_protocol_and_features_after_the_neck(original: Tensor, batch: ModalBatch) -> None:
    output = ModelOutput((make_head("ori", original, fused=False),))
    results = {}
    for protocol, groups in (("camera", batch.camera_ids), ("scene", batch.scene_ids)):
        evaluator = make_evaluator(protocol=protocol, after_neck=True)
        evaluator.update(output, batch)
        results[protocol] = evaluator.compute()[1].mean_ap
        assert results[protocol] == expected_map(original.flip(0), batch, groups)
    assert results["camera"] != results["scene"]


def line_evaluator(
    positions: list[float],
    people: list[int],
    cameras: list[int],
    *,
    query: list[int],
    gallery: list[int],
    protocol: str,
) -> RetrievalEvaluator:
    """Samples on a line; queries and gallery are rows of them."""
    features = torch.tensor(positions).unsqueeze(1)
    evaluator = RetrievalEvaluator(query, gallery, protocol=protocol, normalise=False, after_neck=False)
    batch = ModalBatch(
        images=PerModality.build(lambda _: torch.zeros(len(positions), 3, 1, 1)),
        person_ids=torch.tensor(people),
        camera_ids=torch.tensor(cameras),
        scene_ids=torch.zeros(len(positions), dtype=torch.int64),
    )
    evaluator.update(ModelOutput((make_head("ori", features, fused=False),)), batch)
    return evaluator


def test_without_a_protocol_only_the_query_itself_is_dropped() -> None:
    # The query is sample 1; its twin shot, sample 0, is of the same camera.
    positions, people, cameras = [1.0, 0.0, 0.5], [7, 7, 5], [0, 0, 0]
    for gallery in ([0, 1, 2], [0, 2]):
        evaluator = line_evaluator(positions, people, cameras, query=[1], gallery=gallery, protocol="none")
        assert evaluator.compute()[1].mean_ap == 0.5
        assert evaluator.rank_lists(top=3)[1].places.tolist() == [[2, 0, -1]]
    evaluator = line_evaluator(positions, people, cameras, query=[1], gallery=[0, 1, 2], protocol="camera")
    with pytest.raises(ValueError, match="none of the 1 queries"):
        evaluator.compute()


def test_rank_lists_name_rows_of_the_collected_samples() -> None:
    evaluator = line_evaluator(
        [9.0, 0.0, 3.0, 1.0, 2.0],
        people=[7, 7, 7, 5, 4],
        cameras=[1, 0, 0, 1, 0],
        query=[1, 3],
        gallery=[4, 2, 0, 3],
        protocol="camera",
    )
    lists = evaluator.rank_lists(top=2)[1]
    assert lists.places.tolist() == [[3, 4], [4, 2]]  # row 2 is dropped for the first query, 3 for the second
    assert lists.distances == pytest.approx(np.array([[1.0, 2.0], [1.0, 2.0]]))
    assert lists.match_ranks.tolist() == [3, 0]
    assert lists.match_places.tolist() == [0, -1]
    assert lists.match_distances == pytest.approx(np.array([9.0, np.nan]), nan_ok=True)


def test_re_ranking_replaces_the_distances(
    original: Tensor, fused: Tensor, batch: ModalBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def counted(query: np.ndarray, gallery: np.ndarray) -> np.ndarray:
        calls.append(query.shape)
        return rerank(query, gallery)

    monkeypatch.setattr("evaluation.evaluator.rerank", counted)
    heads = (make_head("ori", original, fused=False), make_head("moe", fused, fused=True))
    evaluator = make_evaluator(normalise=True, re_rank=True)
    evaluator.update(ModelOutput(heads), batch)
    metrics, lists, parts = evaluator.compute(), evaluator.rank_lists(top=5), evaluator.breakdown()
    assert calls == [(8, 5), (8, 5), (8, 10)], "once for each pattern"

    both = torch.cat([original, fused], dim=1)
    features = (both / both.norm(dim=1, keepdim=True)).numpy()
    np.testing.assert_allclose(features, evaluator.compared_features()[3], atol=1e-7)
    distances = rerank(evaluator.compared_features()[3][:8], evaluator.compared_features()[3])
    ids, cameras = batch.person_ids.numpy(), batch.camera_ids.numpy()
    expected = rank_distances(distances, ids[:8], ids, cameras[:8], cameras)
    assert metrics[3].mean_ap == expected.mean_ap
    assert metrics[3].mean_ap != expected_map(torch.tensor(features), batch, batch.camera_ids)
    np.testing.assert_array_equal(
        lists[3].distances, np.take_along_axis(distances, lists[3].places, axis=1), strict=True
    )
    by_person = sum(score.num_queries * score.mean_ap for score in parts.identities) / 8
    assert by_person == pytest.approx(expected.mean_ap)

    evaluator.reset()
    evaluator.update(ModelOutput(heads[:1]), batch)
    evaluator.compute()
    assert calls[3:] == [(8, 5)], "new samples are ranked anew"


def test_half_precision_features_are_collected_in_float32(original: Tensor, batch: ModalBatch) -> None:
    evaluator = make_evaluator()
    evaluator.update(ModelOutput((make_head("ori", original.half(), fused=False),)), batch)
    assert evaluator.collected().features[1].dtype == torch.float32


def test_reset_forgets(original: Tensor, batch: ModalBatch) -> None:
    output = ModelOutput((make_head("ori", original, fused=False),))
    evaluator = make_evaluator()
    with pytest.raises(ValueError, match="not seen any batch"):
        evaluator.compute()
    evaluator.update(output, batch)
    first = evaluator.compute()[1]
    evaluator.update(output, batch)
    with pytest.raises(ValueError, match="collected 48 samples, but query and gallery are made of 24"):
        evaluator.compute()
    evaluator.reset()
    evaluator.update(output, batch)
    np.testing.assert_array_equal(evaluator.compute()[1].cmc, first.cmc)


def test_unknown_protocol_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"unknown evaluation protocol 'time'; choose from \['camera', 'scene', 'none'\]"
    ):
        make_evaluator(protocol="time")


def test_selection_is_scored_over_all_batches_with_masks(original: Tensor, batch: ModalBatch) -> None:
    def update(rows: slice, *, person_on_top: bool, with_masks: bool = True) -> None:
        size = len(original[rows])
        masks = torch.zeros(size, 8, 4)
        masks[:, :4] = float(person_on_top)  # patches 0 and 1 of a 2 x 2 grid, or none
        kept = PerModality(*(torch.tensor([pair] * size) for pair in ([0, 1], [1, 2], [2, 3])))
        selection = Selection(
            kept=kept,
            scores=PerModality.build(lambda _: torch.zeros(size, 4)),
            grid=(2, 2),
        )
        output = ModelOutput(
            (make_head("ori", original[rows], fused=False),), selections={"sdtps": selection}
        )
        evaluator.update(output, piece(batch, rows, masks if with_masks else None))

    evaluator = make_evaluator()
    update(slice(0, 10), person_on_top=True, with_masks=False)
    assert evaluator.compute_selection() is None

    update(slice(0, 18), person_on_top=True)
    update(slice(18, 24), person_on_top=False)
    metrics = evaluator.compute_selection()
    assert metrics is not None
    assert metrics.precision == pytest.approx((0.75, 0.375, 0.0))  # 18 of 24 samples show a person
    assert (metrics.chance, metrics.best) == (0.375, 0.75)

    evaluator.reset()
    assert evaluator.compute_selection() is None
    update(slice(0, 4), person_on_top=False)
    metrics = evaluator.compute_selection()
    assert metrics is not None
    assert (metrics.precision.rgb, metrics.chance) == (0.0, 0.0)
