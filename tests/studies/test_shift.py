"""Shifted test images: a selection that knows the patch index alone keeps the same indices."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import train_net as train_entry
from conftest import SMALL_MODEL
from errors import UserError
from modeling.seps.sdtps import TokenSparse
from structures import ModalBatch
from studies.__main__ import main
from studies.shift import SHIFTS, shift_batch, shifted_precision

MakeBatch = Callable[..., ModalBatch]
QUICK = ["SOLVER.EVAL_PERIOD", "2", "TEST.CONTROLS", "False", "OUTPUT_DIR"]


def test_images_and_masks_move_together_and_repeat_their_border(make_batch: MakeBatch) -> None:
    batch = replace(make_batch([0, 1], (4, 6)), person_masks=torch.rand(2, 4, 6))
    assert batch.person_masks is not None
    to_the_right, to_the_left = shift_batch(batch, 2), shift_batch(batch, -1)
    assert to_the_right.person_masks is not None
    for before, after in (
        (batch.person_masks, to_the_right.person_masks),
        (batch.images.ti, to_the_right.images.ti),
    ):
        assert torch.equal(after[..., 2:], before[..., :-2])
        assert torch.equal(after[..., :2], before[..., :1].expand_as(after[..., :2]))
    assert torch.equal(to_the_left.images.rgb[..., :-1], batch.images.rgb[..., 1:])
    assert torch.equal(shift_batch(batch, 0).images.ni, batch.images.ni)


def test_study(
    tmp_path: Path,
    mini_settings: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = tmp_path / "small" / "seed_1"
    train_entry.main(["--config_file", str(SMALL_MODEL), *mini_settings, *QUICK, str(run)])
    capsys.readouterr()
    found = shifted_precision(run)
    assert list(found) == list(SHIFTS)
    measured = json.loads((run / "metrics.json").read_text())["summary"]["last epoch"]["kept_patch_precision"]
    assert found[0][0] == pytest.approx(np.mean([measured[name] for name in ("RGB", "NI", "TI")]), abs=1e-3)

    main(["shift", str(tmp_path)])
    out = capsys.readouterr().out
    assert "| shift, in patches | 0 | -1 | +1 | -2 | +2 |" in out
    assert f"| small | {found[0][0]:.1f} / {found[0][1]:.1f} |" in out

    def same_patches(self: TokenSparse, sources: Tensor) -> Tensor:
        return torch.arange(128.0).expand(len(sources), -1)

    monkeypatch.setattr(TokenSparse, "score", same_patches)
    for own, prior in shifted_precision(run).values():
        assert own == pytest.approx(prior)


def test_a_variant_without_selection_is_named(tmp_path: Path, mini_settings: list[str]) -> None:
    run = tmp_path / "base" / "seed_1"
    off = ["MODEL.USE_SDTPS", "False"]
    train_entry.main(["--config_file", str(SMALL_MODEL), *mini_settings, *off, *QUICK, str(run)])
    with pytest.raises(UserError, match="base/seed_1 selects no patches"):
        main(["shift", str(tmp_path)])
