from collections.abc import Callable, Mapping, Sequence

import pytest
import torch

from conftest import ToyModel
from engine.evaluate import Outputs, evaluate, evaluate_settings, raw_pixels
from evaluation.evaluator import RetrievalEvaluator
from structures import MISSING_SETTINGS, HeadOutput, ModalBatch, Modality, ModelOutput, Role

CPU = torch.device("cpu")
BatchMaker = Callable[..., ModalBatch]


@pytest.fixture
def batches(make_batch: BatchMaker) -> list[ModalBatch]:
    first, second = make_batch([0, 0, 1, 1], seed=1), make_batch([0, 0, 1, 1], seed=2)
    return [first, second]


@pytest.fixture
def evaluator() -> RetrievalEvaluator:
    rows = list(range(8))
    return RetrievalEvaluator(rows, rows, protocol="camera", normalise=True, after_neck=False)


def test_each_sample_is_encoded_once(
    batches: list[ModalBatch], evaluator: RetrievalEvaluator, toy_model: ToyModel
) -> None:
    result = evaluate(toy_model, loader=batches, evaluator=evaluator, device=CPU)
    assert len(toy_model.encoded) == result.num_samples == 8
    assert result.main.num_queries == 8
    assert set(result.ranking) == {1}


def test_the_mode_of_the_model_is_restored_also_after_an_error(
    batches: list[ModalBatch], evaluator: RetrievalEvaluator, toy_model: ToyModel
) -> None:
    modes = []
    toy_model.register_forward_pre_hook(lambda module, _: modes.append(module.training))
    toy_model.train()
    evaluate(toy_model, loader=batches, evaluator=evaluator, device=CPU)
    assert toy_model.training
    assert modes == [False, False]
    with pytest.raises(ValueError, match="collected 4 samples"):
        evaluate(toy_model, loader=batches[:1], evaluator=evaluator, device=CPU)
    assert toy_model.training


def test_missing_modalities_reach_the_model_as_zeros(
    batches: list[ModalBatch], evaluator: RetrievalEvaluator, toy_model: ToyModel
) -> None:
    seen: list[ModalBatch] = []
    toy_model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    evaluate(toy_model, loader=batches, evaluator=evaluator, device=CPU, missing=[Modality.NI])
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

    def forward_settings(
        self, batch: ModalBatch, settings: Mapping[str, Sequence[Modality]]
    ) -> dict[str, ModelOutput]:
        self.num_encoded += len(batch)
        return {setting: self(batch.without(missing)) for setting, missing in settings.items()}


def make_evaluators(settings: list[str]) -> dict[str, RetrievalEvaluator]:
    rows = list(range(8))
    return {
        setting: RetrievalEvaluator(rows, rows, protocol="camera", normalise=True, after_neck=False)
        for setting in settings
    }


def test_every_setting_is_scored_as_by_an_evaluation_of_its_own(
    batches: list[ModalBatch], evaluator: RetrievalEvaluator
) -> None:
    model = MeanColours()
    evaluators = make_evaluators(list(MISSING_SETTINGS))
    results = evaluate_settings(model, loader=batches, evaluators=evaluators, device=CPU)
    assert model.num_encoded == 8  # once for the seven settings
    assert list(results) == ["complete", "r", "n", "t", "rn", "rt", "nt"]
    scores = set()
    for setting, missing in MISSING_SETTINGS.items():
        alone = evaluate(model, loader=batches, evaluator=evaluator, device=CPU, missing=missing)
        assert results[setting].main.mean_ap == alone.main.mean_ap
        assert torch.equal(evaluators[setting].collected().features[1], evaluator.collected().features[1])
        scores.add(alone.main.mean_ap)
    assert len(scores) > 1


def test_an_observer_sees_each_complete_batch_with_all_outputs(batches: list[ModalBatch]) -> None:
    seen: list[tuple[ModalBatch, Outputs]] = []
    evaluate_settings(
        MeanColours(),
        loader=batches,
        evaluators=make_evaluators(["complete", "rn"]),
        device=CPU,
        observe=lambda batch, outputs: seen.append((batch, outputs)),
    )
    assert [batch.names for batch, _ in seen] == [batch.names for batch in batches]
    assert torch.equal(seen[1][0].images.rgb, batches[1].images.rgb)
    assert [list(outputs) for _, outputs in seen] == [["complete", "rn"]] * 2
    assert not seen[0][1]["rn"].embedding(1)[:, :6].any()
    assert seen[0][1]["complete"].embedding(1)[:, :6].any()
