from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from conftest import ToyModel, make_triples
from errors import UserError
from evaluation.loop import Outputs, evaluate, raw_pixels
from evaluation.result import EvaluationResult, ScoringOptions
from structures import (
    MISSING_CONDITIONS,
    HeadOutput,
    ModalBatch,
    Modality,
    ModelOutput,
    PerModality,
    RetrievalSet,
    Role,
    Selection,
)

BatchMaker = Callable[..., ModalBatch]


@pytest.fixture
def batches(make_batch: BatchMaker) -> list[ModalBatch]:
    first, second = make_batch([0, 0, 1, 1], seed=1), make_batch([0, 0, 1, 1], seed=2)
    return [first, second]


@pytest.fixture
def triples(batches: list[ModalBatch]) -> RetrievalSet:
    return make_triples(batches)


def run(
    model: Any, triples: RetrievalSet, conditions: Sequence[str] = ("complete",), **options: Any
) -> dict[str, EvaluationResult]:
    return evaluate(
        model,
        triples,
        conditions=conditions,
        scoring=ScoringOptions(),
        device=torch.device("cpu"),
        **options,
    )


def test_each_sample_is_encoded_once(triples: RetrievalSet, toy_model: ToyModel) -> None:
    result = run(toy_model, triples)["complete"]
    assert len(toy_model.encoded) == result.num_samples == 8
    assert result.main.num_queries == 8
    assert set(result.ranking) == {1}
    assert result.seconds > 0


def test_the_mode_of_the_model_is_restored_also_after_an_error(
    triples: RetrievalSet, toy_model: ToyModel
) -> None:
    modes = []
    toy_model.register_forward_pre_hook(lambda module, _: modes.append(module.training))
    toy_model.train()
    run(toy_model, triples)
    assert toy_model.training
    assert modes == [False, False]

    def fail(*_: object) -> None:
        raise KeyError

    with pytest.raises(KeyError):
        run(toy_model, triples, observe=fail)
    assert toy_model.training


@pytest.mark.parametrize(("loaded", "count"), [(0, 0), (1, 4), (3, 12)])
def test_every_triple_must_come_exactly_once(
    batches: list[ModalBatch], toy_model: ToyModel, loaded: int, count: int
) -> None:
    triples = make_triples([*batches, batches[0]][:loaded], query=range(8), gallery=range(8))
    with pytest.raises(ValueError, match=f"collected {count} samples, but query and gallery are made of 8"):
        run(toy_model, triples)


def test_missing_modalities_reach_the_model_as_zeros(
    batches: list[ModalBatch], triples: RetrievalSet, toy_model: ToyModel
) -> None:
    seen: list[ModalBatch] = []
    toy_model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    assert list(run(toy_model, triples, ["n"])) == ["n"]
    assert not seen[0].images.ni.any()
    assert torch.equal(seen[0].images.rgb, batches[0].images.rgb)
    assert batches[0].images.ni.any()


def test_raw_pixels_are_block_means(make_batch: BatchMaker) -> None:
    batch = make_batch([0, 1], size=(16, 8))
    output = raw_pixels(batch)
    assert output.embedding(1).shape == (2, 3 * 3 * 2 * 1)
    upper_left_red = batch.images.rgb[0, 0, :8, :8].mean()
    torch.testing.assert_close(output.embedding(1)[0, 0], upper_left_red)


class MeanColours:
    """Its features are the mean colours of each image."""

    def __init__(self) -> None:
        self.num_encoded = 0

    def __call__(self, batch: ModalBatch) -> ModelOutput:
        features = torch.cat([image.mean(dim=(2, 3)) for image in batch.images], dim=1)
        return ModelOutput(heads=(HeadOutput("ori", features, features, features, Role.ORIGINAL),))

    def forward_conditions(
        self, batch: ModalBatch, conditions: Mapping[str, Sequence[Modality]]
    ) -> dict[str, ModelOutput]:
        self.num_encoded += len(batch)
        return {condition: self(batch.without(missing)) for condition, missing in conditions.items()}


def test_every_condition_is_scored_as_by_an_evaluation_of_its_own(triples: RetrievalSet) -> None:
    model = MeanColours()
    results = run(model, triples, list(MISSING_CONDITIONS))
    assert model.num_encoded == 8  # once for the seven conditions
    assert list(results) == ["complete", "r", "n", "t", "rn", "rt", "nt"]
    scores = set()
    for condition, result in results.items():
        alone = run(model.__call__, triples, [condition])[condition]
        assert result.main.mean_ap == alone.main.mean_ap
        assert torch.equal(result.samples.embedding(1), alone.samples.embedding(1))
        scores.add(alone.main.mean_ap)
    assert len(scores) > 1


def test_an_observer_sees_each_complete_batch_with_all_outputs(
    batches: list[ModalBatch], triples: RetrievalSet
) -> None:
    seen: list[tuple[ModalBatch, Outputs]] = []
    run(
        MeanColours(),
        triples,
        ["complete", "rn"],
        observe=lambda batch, outputs: seen.append((batch, outputs)),
    )
    assert [batch.names for batch, _ in seen] == [batch.names for batch in batches]
    assert torch.equal(seen[1][0].images.rgb, batches[1].images.rgb)
    assert [list(outputs) for _, outputs in seen] == [["complete", "rn"]] * 2
    assert not seen[0][1]["rn"].embedding(1)[:, :6].any()
    assert seen[0][1]["complete"].embedding(1)[:, :6].any()


def test_a_stop_comes_after_the_triples_and_before_the_ranking(
    triples: RetrievalSet, toy_model: ToyModel
) -> None:
    def stop() -> None:
        assert len(toy_model.encoded) == 8
        raise InterruptedError

    toy_model.train()
    with pytest.raises(InterruptedError):
        run(toy_model, triples, check_stop=stop)
    assert toy_model.training


@dataclass
class OtherProcess:
    """The second of two processes, whose first one has the first batch."""

    first: Any
    is_main: bool = False

    def gather_objects(self, part: Any) -> list[Any]:
        return [self.first, part]


def test_processes_are_joined_in_their_order(batches: list[ModalBatch], triples: RetrievalSet) -> None:
    gathered = []

    class FirstProcess(OtherProcess):
        def gather_objects(self, part: Any) -> list[Any]:
            gathered.append(part)
            raise InterruptedError

    def block(rows: slice) -> RetrievalSet:
        return make_triples(batches[rows], query=range(8), gallery=range(8))

    with pytest.raises(InterruptedError):
        run(MeanColours(), block(slice(0, 1)), world=FirstProcess(None))
    joined = run(MeanColours(), block(slice(1, 2)), world=OtherProcess(gathered[0]))["complete"]
    whole = run(MeanColours(), triples)["complete"]
    assert torch.equal(joined.samples.embedding(1), whole.samples.embedding(1))
    assert joined.samples.names == whole.samples.names
    np.testing.assert_array_equal(joined.main.average_precisions, whole.main.average_precisions)


class Selecting(MeanColours):
    """Keeps patches 0 and 1 of RGB, 1 and 2 of NI, 2 and 3 of TI, in a grid of 2 x 2."""

    def __call__(self, batch: ModalBatch) -> ModelOutput:
        size = len(batch)
        kept = PerModality(*(torch.tensor([pair] * size) for pair in ([0, 1], [1, 2], [2, 3])))
        selection = Selection(kept, PerModality.build(lambda _: torch.zeros(size, 4)), grid=(2, 2))
        return ModelOutput(super().__call__(batch).heads, selections={"sdtps": selection})


def with_masks(batch: ModalBatch, *, person_on_top: bool) -> ModalBatch:
    masks = torch.zeros(len(batch), 32, 16)
    masks[:, :16] = float(person_on_top)  # patches 0 and 1, or none
    return ModalBatch(batch.images, batch.person_ids, batch.camera_ids, batch.scene_ids, batch.names, masks)


def test_selection_is_scored_over_all_batches_with_masks(batches: list[ModalBatch]) -> None:
    assert run(Selecting(), make_triples(batches))["complete"].selection is None
    masked = [with_masks(batches[0], person_on_top=True), with_masks(batches[1], person_on_top=False)]
    result = run(Selecting(), make_triples(masked))["complete"]
    assert result.selection is not None
    assert result.selection.precision == (0.5, 0.25, 0.0)  # half of the samples show a person
    assert (result.selection.chance, result.selection.best) == (0.25, 0.5)
    assert result.slimming is None
    mixed = run(Selecting(), make_triples([masked[0], batches[1]]))["complete"]
    assert mixed.selection is not None
    assert mixed.selection.precision == (1.0, 0.5, 0.0)
    assert run(MeanColours(), make_triples(masked))["complete"].selection is None


def test_a_condition_that_does_not_exist_is_answered_with_the_choices(
    triples: RetrievalSet, toy_model: ToyModel
) -> None:
    with pytest.raises(ValueError, match="there is no condition 'rgb'; choose from complete, r, n, t, rn"):
        run(toy_model, triples, ["rgb"])


def test_a_triple_without_any_image_is_neither_query_nor_gallery(
    make_batch: BatchMaker, caplog: pytest.LogCaptureFixture
) -> None:
    """Of two people, each seen by two cameras twice, the last two triples of each have no RGB image."""
    batch = make_batch([0, 0, 0, 0, 1, 1, 1, 1])
    rgb = torch.tensor([True, True, False, False] * 2)
    batch = replace(batch, present=batch.present._replace(rgb=rgb))
    results = run(MeanColours(), make_triples([batch]), ["complete", "nt", "n"])
    assert [result.main.num_queries for result in results.values()] == [8, 4, 8]
    assert np.flatnonzero(results["nt"].main.first_hits).tolist() == [0, 1, 4, 5]
    assert results["nt"].samples.gallery_rows.tolist() == [0, 1, 4, 5]
    listed = results["nt"].rank_lists(8)[1].items
    assert set(listed[0].tolist()) == {1, 4, 5, -1}
    # With one camera each, no query has a positive: the condition is left out, and the others are scored.
    one_camera = replace(batch, present=batch.present._replace(rgb=torch.tensor([True, False] * 4)))
    assert list(run(MeanColours(), make_triples([one_camera]), ["complete", "nt", "n"])) == ["complete", "n"]
    assert "without NI, TI no query has a positive: this condition is left out" in caplog.text
    nobody = replace(batch, present=batch.present._replace(rgb=torch.zeros(8, dtype=torch.bool)))
    assert list(run(MeanColours(), make_triples([nobody]), ["complete", "nt"])) == ["complete"]
    with pytest.raises(UserError, match="none of the 8 queries can be scored"):
        run(MeanColours(), make_triples([one_camera]), ["nt"])
