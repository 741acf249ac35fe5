"""The space that all modalities share, on features whose shared content is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import evaluation.shared_space
from conftest import make_triples
from errors import UserError
from evaluation.any_to_any import score_any_to_any
from evaluation.ranking import score_retrieval
from evaluation.result import EncodedSamples, EvaluationResult, ScoringOptions
from evaluation.shared_space import fit_shared_space
from evaluation.tables import any_to_any_table
from structures import Modality, PerModality

RGB, TI = Modality.RGB, Modality.TI


def encode(features: Tensor, person_ids: Sequence[int], there: Tensor | None = None) -> EncodedSamples:
    """Samples with parts of RGB and TI side by side; `there` says where both images are."""
    size = len(person_ids)
    mask = np.ones(size, dtype=bool) if there is None else there.numpy()
    return EncodedSamples(
        features={1: features},
        person_ids=np.array(person_ids),
        camera_ids=np.arange(size) % 2,
        scene_ids=np.zeros(size, dtype=np.int64),
        names=(),
        triples=replace(make_triples([], query=range(size), gallery=range(size)), modalities=(RGB, TI)),
        scoring=ScoringOptions(),
        present=PerModality(mask, np.zeros(size, dtype=bool), mask),
        parts=(RGB, TI),
    )


def draw(person_ids: Tensor, generator: torch.Generator) -> Tensor:
    """Features that show a person's five traits, in each modality in its own way and among five others."""
    views = torch.Generator().manual_seed(1)  # how a modality shows traits is the same for all people
    traits = torch.randn(int(person_ids.max()) + 1, 5, generator=generator)[person_ids]
    parts = []
    for _ in (RGB, TI):
        mixed = torch.randn(10, 10, generator=views)
        others = 3 * torch.randn(len(person_ids), 5, generator=generator)
        parts.append(torch.cat([traits, others], dim=1) @ mixed + 20)
    return torch.cat(parts, dim=1)


def test_people_are_found_across_modalities_in_the_space_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    ids = torch.arange(60).repeat_interleave(8)
    space = fit_shared_space(encode(draw(ids, generator), ids.tolist()))
    unseen = torch.arange(20).repeat_interleave(4)
    samples = encode(draw(unseen, generator), unseen.tolist())
    results = {"complete": EvaluationResult({1: score_retrieval(samples.retrieval(1))}, samples, seconds=0.0)}
    plain, shared = score_any_to_any(results), score_any_to_any(results, space)
    across = [found.mean(cross_modality=True)[0] for found in (plain, shared)]
    assert across[0] < 2 * plain.chance
    assert across[1] > 0.75
    # It sorts out what varies within a person, too.
    same = [found.cells[(RGB,), (RGB,)] for found in (plain, shared)]
    assert same[0] is not None
    assert same[1] is not None
    assert same[1].mean_ap > same[0].mean_ap
    assert [found.as_dict()["shared_space"] for found in (plain, shared)] == [False, True]
    assert "in the space that all modalities share" in any_to_any_table(shared).splitlines()[0]
    lists = shared.rank_lists((RGB,), (TI,), 1)
    assert (samples.person_ids[lists.items[:, 0]] == samples.person_ids).mean() > 0.75


def test_maps_are_least_squares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the ridge, and with NumPy's solver; rows whose images are absent are left out."""
    monkeypatch.setattr(evaluation.shared_space, "RIDGE", 0.0)
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(12, 4, generator=generator)
    ids = [7, 7, 9, 9, 11, 11, 7, 9, 11, 7, 9, 11]
    there = torch.arange(12) < 10
    features[~there] = 1e6
    space = fit_shared_space(encode(features, ids, there))
    x, y = features[:10, :2].double().numpy(), np.equal.outer(ids[:10], [7, 9, 11]).astype(float)
    expected, *_ = np.linalg.lstsq(x - x.mean(axis=0), y, rcond=None)
    assert space.maps[RGB].numpy() == pytest.approx(expected)
    assert space(RGB, features[:10, :2]).numpy() == pytest.approx((x - x.mean(axis=0)) @ expected, abs=1e-5)


def test_what_cannot_be_fitted_is_refused() -> None:
    samples = encode(torch.randn(2, 4), [0, 1], torch.tensor([False, False]))
    with pytest.raises(UserError, match="--shared_space: the training split has no RGB image"):
        fit_shared_space(samples)
    with pytest.raises(UserError, match="--shared_space maps the original features, and this model has none"):
        fit_shared_space(replace(samples, parts=()))
