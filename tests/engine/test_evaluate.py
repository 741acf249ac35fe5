from collections.abc import Callable

import pytest
import torch

from conftest import ToyModel
from engine.evaluate import EvaluationResult, evaluate, raw_pixels, result_table
from evaluation.evaluator import RetrievalEvaluator
from evaluation.selection import SelectionMetrics
from structures import ModalBatch, Modality, PerModality

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


def test_the_table_shows_patterns_controls_and_kept_patches(
    batches: list[ModalBatch], evaluator: RetrievalEvaluator, toy_model: ToyModel
) -> None:
    result = evaluate(toy_model, loader=batches, evaluator=evaluator, device=CPU)
    selected = EvaluationResult(
        result.ranking, SelectionMetrics(PerModality(0.5, 0.25, 0.125), 0.4, 0.8), 8, 1.0
    )
    table = result_table(selected, {"untrained": result})
    assert f"{100 * result.main.mean_ap:.1f}" in table
    assert "control: untrained" in table
    assert "RGB 50.0%, NI 25.0%, TI 12.5% (chance 40.0%, best possible 80.0%)" in table
    assert selected.as_dict()["kept_patch_precision"]["NI"] == 25.0
