import copy
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import baselines
from benchmarks.rows_data import draw_triples
from benchmarks.rows_model import (
    SMALL_BACKBONE,
    evaluate_project,
    make_batch,
    make_demo,
    pattern_difference,
    train_step,
    training_of,
)
from benchmarks.rows_ranking import (
    Split,
    make_features,
    rank_numpy,
    rank_plain,
    rank_project,
    score_difference,
)
from benchmarks.seps import similarity_difference
from evaluation.rerank import rerank
from modeling.branches.demo import HDM
from solver.build import make_criterion, make_optimizer
from structures import ModalBatch, ModelOutput, PerModality


def test_scores_worked_by_hand() -> None:
    """Ranks miss, hit, hit; then an item of the same camera is dropped and there is one hit, at rank 1."""
    distances = np.array([[0.1, 0.2, 0.3, 0.9], [0.9, 0.2, 0.1, 0.3]])
    gallery_ids, gallery_cameras = np.array([2, 1, 1, 3]), np.array([0, 1, 2, 1])
    mean_ap, mean_inp, cmc = baselines.rank_by_loop(
        distances, np.array([1, 1]), gallery_ids, np.array([0, 2]), gallery_cameras, max_rank=3
    )
    assert mean_ap == pytest.approx(((1 / 2 + 2 / 3) / 2 + 1) / 2)
    assert mean_inp == pytest.approx((2 / 3 + 1) / 2)
    assert cmc.tolist() == [0.5, 1, 1]


def test_a_query_without_a_positive_is_skipped() -> None:
    ids, groups = np.array([1, 9]), np.array([0, 0])
    scores = baselines.rank_by_loop(np.eye(2), ids, np.array([1, 2]), groups, np.array([1, 1]))
    assert scores[0] == 0.5


@pytest.mark.parametrize("seed", range(3))
def test_ranking_is_that_of_the_project(seed: int) -> None:
    features = make_features(Split("drawn", 40, 200, 8, identities=8, groups=6), seed)
    assert 0.05 < rank_project(features)[0] < 0.95
    for plain in (rank_plain, rank_numpy):
        assert score_difference(plain(features), rank_project(features)) < 1e-6


def test_difference_of_scores_sees_each_of_them() -> None:
    curve = np.array([0.5, 0.75])
    scores = (0.25, 0.5, curve)
    assert score_difference(scores, scores) == 0
    assert score_difference(scores, (0.375, 0.5, curve)) == 0.125
    assert score_difference(scores, (0.25, 0.75, curve)) == 0.25
    assert score_difference(scores, (0.25, 0.5, np.array([0.5, 0.25, 1.0]))) == 0.5


@pytest.mark.parametrize(("k1", "k2"), [(50, 15), (6, 3), (5, 1)])
def test_reranking_is_that_of_the_project(k1: int, k2: int) -> None:
    features = make_features(Split("drawn", 30, 120, 8, identities=5, groups=6))
    plain = baselines.rerank_by_loop(features.query, features.gallery, k1=k1, k2=k2)
    project = rerank(features.query, features.gallery, k1=k1, k2=k2)
    assert plain.shape == (30, 120)
    assert np.abs(plain - project).max() < 3e-3, "half precision"
    assert np.ptp(plain) > 0.3


def test_hdm_is_that_of_the_project() -> None:
    torch.manual_seed(0)
    project = HDM(64).eval()
    for name, parameter in project.named_parameters():
        if "bias" in name:
            torch.nn.init.normal_(parameter)
    plain = baselines.PlainHDM(project).eval()
    globals_ = PerModality.build(lambda _: torch.randn(2, 64))
    patches = PerModality.build(lambda _: torch.randn(2, 5, 64))
    torch.testing.assert_close(plain(globals_, patches), project(globals_, patches))


def test_training_steps_are_those_of_the_project() -> None:
    cfg, model = make_demo(SMALL_BACKBONE)
    plain = baselines.PlainModel(copy.deepcopy(model))
    optimizer, criterion = make_optimizer(cfg, model), make_criterion(cfg)
    plain_optimizer = baselines.plain_adam(make_optimizer(cfg, plain.model).param_groups)
    trained = [parameter for parameter in plain.parameters() if parameter.requires_grad]
    assert len(plain_optimizer.param_groups) == len(trained)
    rates = [{group["lr"] for group in each.param_groups} for each in (optimizer, plain_optimizer)]
    assert rates[0] == rates[1]
    batch = make_batch(cfg, 4)
    weights = [dict(each.named_parameters())["backbone.vit.norm.weight"] for each in (model, plain.model)]
    before = weights[0].detach().clone()
    step = training_of(cfg, model, batch)
    ours = [step() for _ in range(3)]
    theirs = [train_step(plain, plain_optimizer, criterion, batch) for _ in range(3)]
    assert ours == pytest.approx(theirs, rel=1e-4)
    assert ours[0] != ours[1]
    torch.testing.assert_close(*weights, atol=1e-4, rtol=0)
    assert (weights[0] - before).abs().max() > 5e-4


def test_adam_is_that_of_the_project() -> None:
    cfg, model = make_demo(SMALL_BACKBONE)
    models = [model, copy.deepcopy(model)]
    optimizers = [
        make_optimizer(cfg, models[0]),
        baselines.plain_adam(make_optimizer(cfg, models[1]).param_groups),
    ]
    for step in range(3):
        for each, optimizer in zip(models, optimizers, strict=True):
            generator = torch.Generator().manual_seed(step)
            for parameter in each.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=generator)
            optimizer.step()
    for ours, theirs in zip(*(each.parameters() for each in models), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)


def test_evaluation_is_that_of_the_project_with_six_times_the_encodings() -> None:
    cfg, model = make_demo(SMALL_BACKBONE)
    model.eval()
    batches = [make_batch(cfg, 6, first=first) for first in (0, 6)]
    encoded: list[int] = []

    def count(batch: ModalBatch) -> ModelOutput:
        encoded.append(len(batch))
        return model(batch)

    plain = baselines.evaluate_by_passes(count, batches)
    assert sum(encoded) == 2 * 12 * 3
    found = evaluate_project(model, batches)["complete"]
    assert plain.keys() == found.keys() == {1, 2, 3}
    assert pattern_difference(plain, found) < 1e-9


def test_conditions_at_once_are_those_one_by_one() -> None:
    cfg, model = make_demo(SMALL_BACKBONE)
    batches = [make_batch(cfg, 6, first=first) for first in (0, 6)]
    together = evaluate_project(model, batches, ["complete", "t", "rn"])
    assert pattern_difference(together["t"], evaluate_project(model, batches, ["t"])["t"]) < 1e-6
    assert pattern_difference(together["t"], together["rn"]) > 1e-3


def test_drawn_files_are_as_large_as_photographs(tmp_path: Path) -> None:
    (record,) = draw_triples(tmp_path, 1)
    assert all(4000 < path.stat().st_size < 20000 for path in record.files)


def test_difference_of_similarities_sees_values_and_kept_patches() -> None:
    similarities, masks = torch.zeros(2, 5), (torch.ones(5, 2, 3), torch.ones(5, 2, 3))
    other = similarities.clone()
    other[1, 3] = 0.5
    assert similarity_difference((similarities, masks), (other, masks)) == 0.5
    one_pair = masks[1].clone()
    one_pair[3, 1, 0] = 0  # text 3 of image 1: the pair that differs is left out
    assert similarity_difference((similarities, masks), (other, (masks[0], one_pair))) == 0
    assert similarity_difference((similarities, masks), (other, (masks[0], 1 - masks[1]))) == float("inf")
