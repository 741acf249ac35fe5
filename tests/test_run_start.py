"""What a run started from, and on which images: said aloud, and kept when it is resumed."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import train_net as train_entry
from config import load_config
from conftest import SMALL_MODEL
from datasets.synthetic import SyntheticSpec, ensure_synthetic
from engine.arguments import evaluation_arguments, train_arguments
from errors import UserError
from modeling.make_model import warn_random_start

DEIT = ["MODEL.TRANSFORMER_TYPE", "deit_tiny_patch16_224", "MODEL.STRIDE_SIZE", "[16, 16]"]


def metrics_of(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "metrics.json").read_text())
    return content


def test_a_large_backbone_without_weights_is_said_aloud_and_remembered(
    tmp_path: Path, mini_settings: list[str]
) -> None:
    folder = tmp_path / "run"
    arguments = ["--config_file", str(SMALL_MODEL), *mini_settings, *DEIT, "TEST.CONTROLS", "False"]
    arguments += ["SOLVER.MAX_EPOCHS", "1", "SOLVER.WARMUP_ITERS", "0", "OUTPUT_DIR", str(folder)]
    train_entry.main(arguments)
    remark = "WARNING this model trains deit_tiny_patch16_224 from random weights"
    log = (folder / "log.txt").read_text()
    assert log.count(remark) == 2
    before, _, after = log.partition("last epoch, all files in")
    assert remark in before
    assert remark in after
    assert metrics_of(folder)["initial_weights"] == "random"

    # The file is named later: the run has still begun without it. So has one of version 1.
    for forget in (False, True):
        content = torch.load(folder / "last.pth", weights_only=True)
        if forget:
            del content["progress"]["initial_weights"], content["progress"]["initial_sha256"]
            torch.save(content, folder / "last.pth")
        weights = ["MODEL.PRETRAIN_PATH_T", "deit.pth"]
        train_entry.main([*arguments, *weights, "--resume", "--force"])
        assert metrics_of(folder)["initial_weights"] == "random"
        assert (folder / "log.txt").read_text().count(remark) == (6 if forget else 4)


def test_the_file_that_a_run_starts_from_is_remembered(tmp_path: Path, mini_settings: list[str]) -> None:
    arguments = ["--config_file", str(SMALL_MODEL), *mini_settings, "TEST.CONTROLS", "False"]
    arguments += ["SOLVER.MAX_EPOCHS", "1", "SOLVER.WARMUP_ITERS", "0"]
    train_entry.main([*arguments, "OUTPUT_DIR", str(tmp_path / "first")])
    assert metrics_of(tmp_path / "first")["initial_weights"] == "random"
    assert "from random weights" not in (tmp_path / "first" / "log.txt").read_text()  # it is made for it
    weights = str(tmp_path / "first" / "best.pth")
    second = tmp_path / "second"
    train_entry.main([*arguments, "OUTPUT_DIR", str(second), "MODEL.PRETRAIN_PATH_T", weights])
    assert metrics_of(second)["initial_weights"] == weights
    assert len(metrics_of(second)["initial_sha256"]) == 64


def test_a_file_of_demo_gets_the_name_of_the_weights(caplog: pytest.LogCaptureFixture) -> None:
    warn_random_start(load_config(None, []), "pretrained/ViT-B-16.pt")
    assert not caplog.records
    warn_random_start(load_config(None, []), "random")
    assert "MODEL.PRETRAIN_PATH_T pretrained/ViT-B-16.pt" in caplog.text


def test_a_run_is_not_resumed_on_other_images(
    tmp_path: Path, mini_settings: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    spec = SyntheticSpec(
        train_ids=5, test_ids=2, cameras=2, train_shots=1, test_shots=1, height=128, width=64
    )
    data = ensure_synthetic(tmp_path, spec=spec).rename(tmp_path / "RGBNT201")
    arguments = ["--config_file", str(SMALL_MODEL), *mini_settings, "TEST.CONTROLS", "False"]
    arguments += ["DATASETS.ROOT_DIR", str(tmp_path), "OUTPUT_DIR", str(tmp_path / "run")]
    arguments += ["SOLVER.MAX_EPOCHS", "1", "SOLVER.WARMUP_ITERS", "0"]
    train_entry.main(arguments)
    (tmp_path / "moved").mkdir()
    data = data.rename(tmp_path / "moved" / "RGBNT201")
    arguments += ["DATASETS.ROOT_DIR", str(tmp_path / "moved"), "--resume"]
    train_entry.main(arguments)  # the folder may move
    for split, said in (("test", "test"), ("train_171", "training and test")):
        number = "000001" if split == "train_171" else "000006"
        for path in data.glob(f"{split}/*/{number}_cam1_*"):
            path.rename(path.with_name(path.name.replace("cam1", "cam3")))
        with pytest.raises(UserError, match=f"the {said} images are not those that the run was started"):
            train_entry.main(arguments)
    train_entry.main([*arguments, "--force"])
    assert "WARNING the training and test images are not those" in capsys.readouterr().out


@pytest.mark.parametrize("parse", [train_arguments, evaluation_arguments])
def test_an_empty_name_of_a_configuration_is_refused(parse: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(["--config_file", ""])
    assert caught.value.code == 2
    assert "--config_file: the name is empty" in capsys.readouterr().err
