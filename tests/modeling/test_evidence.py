"""Where the evidence is: by hand, inside the model, and taught by the identity loss alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from config import load_config
from conftest import SMALL_MODEL
from modeling.evidence import HIDDEN_SHARE, LocalEvidence, neighbourhood_mean
from modeling.make_model import make_model
from modeling.reid_model import MultiModalReID
from modeling.sdtps import min_max_normalise
from solver.losses import ReIDLoss
from structures import ModalBatch, Modality, PerModality

MakeBatch = Callable[..., ModalBatch]
SIZE = (128, 64)
GRID = (4, 5)


def build(*settings: str) -> MultiModalReID:
    torch.manual_seed(0)
    return make_model(load_config(SMALL_MODEL, ["MODEL.SDTPS_GUIDE", "evidence", *settings]), 5, 2)


def random_embeddings(batch: int = 3, seed: int = 0) -> PerModality[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return PerModality.build(lambda _: torch.randn(batch, 20, 16, generator=generator))


def test_neighbourhood_mean_by_hand() -> None:
    # 0 1 4 / 0 0 2: a corner has three neighbours, the middle of a side five; nothing is added at the border.
    scores = torch.tensor([[0.0, 1.0, 4.0, 0.0, 0.0, 2.0]])
    expected = torch.tensor([[1 / 4, 7 / 6, 7 / 4, 1 / 4, 7 / 6, 7 / 4]])
    torch.testing.assert_close(neighbourhood_mean(scores, (2, 3)), expected)


def test_scores_weigh_the_patches() -> None:
    embeddings = random_embeddings()
    scores, means = LocalEvidence(16, GRID).eval()(embeddings)
    assert scores.shape == (3, 20)
    expected = torch.einsum("bn,mbnc->bmc", scores.softmax(dim=1), torch.stack(embeddings)).flatten(1)
    torch.testing.assert_close(means, expected)


def test_in_training_some_patches_are_hidden_from_the_mean_and_not_from_the_scores() -> None:
    torch.manual_seed(0)
    evidence = LocalEvidence(16, GRID)
    one_hot = torch.eye(20).expand(200, -1, -1)[..., :16]  # the mean tells the weights of sixteen patches
    embeddings = PerModality(one_hot, one_hot, one_hot)
    scores, means = evidence.train()(embeddings)
    torch.testing.assert_close(scores, evidence.eval()(embeddings)[0])
    hidden = means[:, :16].eq(0).float().mean().item()
    assert hidden == pytest.approx(HIDDEN_SHARE, abs=0.03)


def test_a_missing_image_has_no_say() -> None:
    evidence = LocalEvidence(16, GRID).eval()
    embeddings = random_embeddings()
    without = embeddings._replace(ti=torch.zeros_like(embeddings.ti))
    scores = min_max_normalise(evidence(without)[0])
    with torch.no_grad():
        for parameter in evidence.score[Modality.TI.key].parameters():
            parameter.normal_()
    torch.testing.assert_close(min_max_normalise(evidence(without)[0]), scores, atol=1e-5, rtol=0)
    assert not torch.allclose(min_max_normalise(evidence(embeddings)[0]), scores, atol=1e-2)


def test_it_finds_the_patches_that_tell_identities_apart() -> None:
    """Four identities; each shows at two of twelve places, which differ from sample to sample."""
    torch.manual_seed(0)
    looks = torch.randn(4, 8)

    def draw(count: int) -> tuple[PerModality[Tensor], Tensor, Tensor]:
        ids = torch.randint(4, (count,))
        first = torch.randint(11, (count, 1))
        shows = torch.zeros(count, 12, dtype=torch.bool).scatter(
            1, torch.cat([first, first + 1], dim=1), True
        )
        clutter = PerModality.build(lambda _: torch.randn(count, 12, 8))
        return (
            clutter.map(lambda noise: torch.where(shows[..., None], looks[ids][:, None], noise)),
            ids,
            shows,
        )

    evidence, classify = LocalEvidence(8, (1, 12)), torch.nn.Linear(24, 4)
    optimizer = torch.optim.Adam([*evidence.parameters(), *classify.parameters()], lr=0.01)
    for _ in range(150):
        embeddings, ids, _ = draw(64)
        loss = torch.nn.functional.cross_entropy(classify(evidence(embeddings)[1]), ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    embeddings, _, shows = draw(200)
    best_two = evidence.eval()(embeddings)[0].topk(2, dim=1).indices
    assert shows.gather(1, best_two).float().mean() > 0.8  # chance: 1 / 6


def test_evidence_guides_the_model_and_teaches_neither_backbone_nor_heads(make_batch: MakeBatch) -> None:
    model = build("MODEL.SDTPS_BETA", "0.5").train()
    batch = make_batch([0, 0, 1, 1], SIZE)
    output = model(batch)
    assert output.evidence is not None
    assert [head.name for head in output.heads] == ["ori", "sdtps"]  # it is no descriptor
    output.evidence.square().sum().backward()
    taught = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert taught == {
        name
        for name, parameter in model.named_parameters()
        if name.startswith(("evidence.", "heads.evidence.")) and parameter.requires_grad
    }
    output = model.eval()(batch)
    assert output.selection is not None
    kept = output.selection.kept
    assert torch.equal(kept.rgb, kept.ni)  # a place is worth the same to all modalities
    assert torch.equal(kept.rgb, kept.ti)
    assert output.selection.sources.ni.shape == (4, 2, 128)


def test_the_loss_names_the_evidence_and_reaches_every_parameter(make_batch: MakeBatch) -> None:
    batch = make_batch([0, 0, 1, 1], SIZE)
    model = build().train()
    output = model(batch)
    losses = ReIDLoss(id_weight=0.25, triplet_weight=1.0, label_smoothing=0.1, margin=0.3)(
        output, batch.person_ids
    )
    assert output.evidence is not None
    expected = torch.nn.functional.cross_entropy(output.evidence, batch.person_ids, label_smoothing=0.1)
    torch.testing.assert_close(losses["evidence/id"], 0.25 * expected)
    torch.stack(list(losses.values())).sum().backward()
    # A parameter without gradient would stop training with several processes.
    assert not [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]


@pytest.mark.parametrize("slim", [[], ["MODEL.SLIM_LAYERS", "[1]", "MODEL.SLIM_KEEP", "0.5"]])
def test_missing_modalities_give_the_same_in_one_pass_and_in_several(
    slim: list[str], make_batch: MakeBatch
) -> None:
    model = build("MODEL.SDTPS_BETA", "0.5", *slim).eval()
    batch = make_batch([0, 1], SIZE)
    settings = {"none": (), "without TI": (Modality.TI,), "NI alone": (Modality.RGB, Modality.TI)}
    with torch.no_grad():
        together = model.forward_settings(batch, settings)
        for name, missing in settings.items():
            found, alone = together[name], model(batch.without(missing))
            assert found.selection is not None
            assert alone.selection is not None
            torch.testing.assert_close(found.selection.scores.rgb, alone.selection.scores.rgb)
            torch.testing.assert_close(found.embedding(3), alone.embedding(3))
