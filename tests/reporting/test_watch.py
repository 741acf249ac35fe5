"""The picture that TensorBoard shows, alone and from a run."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

import train_net as train_entry
from conftest import SMALL_MODEL
from reporting.pictures import VEIL, VEIL_STRENGTH
from reporting.watch import GAP, PICTURE_NAME, SelectionWatch, spread_evenly
from structures import ModalBatch, ModelOutput, PerModality, Selection


class KeepsOnePatch(nn.Module):
    """Keeps one patch of a grid of 2 x 1: the upper one of RGB and NI, the lower one of TI."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout()
        self.fails = False

    def forward(self, batch: ModalBatch) -> ModelOutput:
        assert not self.training
        assert not torch.is_grad_enabled()
        self.dropout(torch.ones(9))
        if self.fails:
            raise RuntimeError("broken")
        kept = PerModality(*(torch.full((len(batch), 1), index) for index in (0, 0, 1)))
        scores = PerModality.build(lambda _: torch.zeros(len(batch), 2))
        return ModelOutput(heads=(), selections={"sdtps": Selection(kept, scores, (2, 1))})


@pytest.mark.parametrize(
    ("available", "wanted", "rows"),
    [(9, 3, [0, 4, 8]), (5, 5, [0, 1, 2, 3, 4]), (3, 8, [0, 1, 2]), (10, 1, [0]), (256, 2, [0, 255])],
)
def test_rows_are_spread_from_the_first_to_the_last(available: int, wanted: int, rows: list[int]) -> None:
    assert spread_evenly(available, wanted) == rows


def test_one_column_per_triple_and_one_row_per_modality(make_batch: Callable[..., ModalBatch]) -> None:
    batch = make_batch([0, 1, 2], size=(8, 4))
    watch = SelectionWatch(batch, mean=[0.5] * 3, std=[0.1] * 3)
    picture = watch(KeepsOnePatch())[PICTURE_NAME]
    assert picture.shape == (3, 3 * 8 + 2 * GAP, 3 * 4 + 2 * GAP)
    second = (0.1 * batch.images.rgb[1] + 0.5).clamp(0, 1)
    column = picture[:, :, 4 + GAP : 8 + GAP]
    torch.testing.assert_close(column[:, :4], second[:, :4])
    veiled = VEIL_STRENGTH * torch.tensor(VEIL).view(3, 1, 1) + (1 - VEIL_STRENGTH) * second[:, 4:]
    torch.testing.assert_close(column[:, 4:8], veiled)
    thermal = (0.1 * batch.images.ti[1] + 0.5).clamp(0, 1)
    torch.testing.assert_close(column[:, -4:], thermal[:, 4:])  # the lower half was kept
    assert (picture[:, 8 : 8 + GAP] == 1).all()


def test_an_absent_image_is_white(make_batch: Callable[..., ModalBatch]) -> None:
    batch = make_batch([0, 1], size=(8, 4))
    batch = replace(batch, present=batch.present._replace(ni=torch.tensor([False, True])))
    picture = SelectionWatch(batch, mean=[0.5] * 3, std=[0.1] * 3)(KeepsOnePatch())[PICTURE_NAME]
    second_row = picture[:, 8 + GAP : 16 + GAP]
    assert (second_row[:, :, :4] == 1).all()
    assert (second_row[:, :, 4 + GAP :] < 1).all()


def test_large_images_are_shrunk(make_batch: Callable[..., ModalBatch]) -> None:
    watch = SelectionWatch(make_batch([0], size=(256, 128)), mean=[0] * 3, std=[1] * 3)
    assert watch(KeepsOnePatch())[PICTURE_NAME].shape == (3, 3 * 128 + 2 * GAP, 64)


def test_mode_and_random_numbers_stay_as_they_were(make_batch: Callable[..., ModalBatch]) -> None:
    model = KeepsOnePatch()
    watch = SelectionWatch(make_batch([0], size=(8, 4)), mean=[0] * 3, std=[1] * 3)
    state = torch.get_rng_state()
    for training in (True, False):
        model.train(training)
        watch(model)
        assert model.training == model.dropout.training == training
    assert torch.equal(torch.get_rng_state(), state)
    model.train()
    model.fails = True
    with pytest.raises(RuntimeError, match="broken"):
        watch(model)
    assert model.training


def train(folder: Path, overrides: list[str], *more: str) -> list[dict[str, float]]:
    """Train with noise that depends on the random numbers drawn before; returns the losses of each epoch."""
    noisy = ["MODEL.DROP_PATH", "0.2", "SOLVER.MAX_EPOCHS", "4", "SOLVER.EVAL_PERIOD", "2"]
    quick = ["TEST.CONTROLS", "False", "OUTPUT_DIR", str(folder)]
    train_entry.main(["--config_file", str(SMALL_MODEL), *overrides, *noisy, *quick, *more])
    epochs = json.loads((folder / "metrics.json").read_text())["epochs"]
    return [{key: value for key, value in epoch.items() if "/" in key} for epoch in epochs]


def images_of(folder: Path) -> EventAccumulator:
    events = EventAccumulator(str(folder / "tensorboard" / "evaluation"), size_guidance={"images": 0})
    return events.Reload()


def test_a_run_shows_the_picture_of_every_evaluated_epoch_and_learns_as_without(
    tmp_path: Path, mini_settings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gumbel = ["MODEL.SDTPS_USE_GUMBEL", "True"]
    watched = train(tmp_path / "watched", mini_settings, *gumbel)
    events = images_of(tmp_path / "watched")
    assert events.Tags()["images"] == [PICTURE_NAME]
    pictures = events.Images(PICTURE_NAME)
    assert [picture.step for picture in pictures] == [2, 4]
    assert (pictures[0].height, pictures[0].width) == (3 * 128 + 2 * GAP, 8 * 64 + 7 * GAP)
    assert pictures[0].encoded_image_string != pictures[1].encoded_image_string  # the selection has changed

    monkeypatch.setattr(train_entry, "make_selection_watch", lambda *_: lambda model: {})
    assert train(tmp_path / "alone", mini_settings, *gumbel) == watched
    assert images_of(tmp_path / "alone").Tags()["images"] == []


def test_a_model_without_selection_has_no_picture(tmp_path: Path, mini_settings: list[str]) -> None:
    train(tmp_path / "run", mini_settings, "MODEL.USE_SDTPS", "False", "SOLVER.MAX_EPOCHS", "2")
    assert images_of(tmp_path / "run").Tags()["images"] == []
