"""The checkout used from another folder, through torch.hub."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import hubconf
import train_net as train_entry
from config import load_config
from conftest import ROOT, SMALL_MODEL
from errors import UserError
from modeling.make_model import make_model
from modeling.weights import load_pretrained
from structures import ModalBatch, PerModality
from trained import load_trained

PROGRAM = """
import sys
import numpy as np
import torch

model = torch.hub.load(sys.argv[1], "demo_sdtps", source="local", weights=sys.argv[2])
from structures import ModalBatch, PerModality
ids = torch.tensor([0, 1])
images = torch.linspace(-1, 1, 2 * 3 * 128 * 64).view(2, 3, 128, 64)
with torch.no_grad():
    output = model(ModalBatch(PerModality(images, images, images), ids, ids, ids))
np.save("features.npy", output.embedding(3).numpy())
"""


def test_a_trained_model_from_another_folder(tmp_path: Path, mini_settings: list[str]) -> None:
    words = ["SOLVER.MAX_EPOCHS", "1", "SOLVER.WARMUP_ITERS", "0", "TEST.CONTROLS", "False"]
    run = str(tmp_path / "run")
    train_entry.main(["--config_file", str(SMALL_MODEL), *mini_settings, *words, "OUTPUT_DIR", run])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(ROOT), f"{run}/last.pth"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_HOME": str(tmp_path / "hub")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    model = load_trained(f"{run}/last.pth").model.eval()
    ids = torch.tensor([0, 1])
    images = torch.linspace(-1, 1, 2 * 3 * 128 * 64).view(2, 3, 128, 64)
    with torch.no_grad():
        expected = model(ModalBatch(PerModality(images, images, images), ids, ids, ids)).embedding(3)
    assert np.array_equal(np.load(tmp_path / "features.npy"), expected.numpy())


def test_a_model_with_random_weights() -> None:
    model = torch.hub.load(
        str(ROOT), "demo_sdtps", source="local", config_file=SMALL_MODEL, num_classes=5, num_cameras=2
    )
    assert not model.training
    assert model.heads["sdtps"].classifier.weight.shape == (5, 192)


def test_a_model_with_a_pre_trained_trunk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The file that the overrides name is loaded, or refused; that of the configuration file is not."""
    config = ROOT / "configs" / "Synthetic" / "DeMo_SDTPS.yml"
    key, file = "MODEL.PRETRAIN_PATH_T", ROOT / "configs" / "Synthetic" / "trunk.safetensors"
    random = hubconf.demo_sdtps(config_file=config)
    assert "this model has random weights" in caplog.text
    caplog.clear()
    model = hubconf.demo_sdtps(config_file=config, overrides=[key, str(file)])
    assert "random weights" not in caplog.text
    expected = make_model(load_config(config), 171, 4)
    load_pretrained(expected, file)
    trunk, wanted, other = (each.backbone.vit.state_dict() for each in (model, expected, random))
    assert all(torch.equal(trunk[name], wanted[name]) for name in wanted)
    assert not all(torch.equal(trunk[name], other[name]) for name in other)
    with pytest.raises(UserError, match=r"MODEL\.PRETRAIN_PATH_T.* no\.pth"):
        hubconf.demo_sdtps(config_file=config, overrides=[key, "no.pth"])


def test_the_options_of_the_predictor_are_shown() -> None:
    assert {"weights", "device", "calibration"} <= set(inspect.signature(hubconf.predictor).parameters)
    assert "a file of `tools.calibrate`" in str(hubconf.predictor.__doc__)


def test_another_package_of_the_same_name_is_named(tmp_path: Path) -> None:
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / "__init__.py").touch()
    program = "import datasets, sys, torch; torch.hub.load(sys.argv[1], 'predictor', 'x.pth', source='local')"
    done = subprocess.run(
        [sys.executable, "-c", program, str(ROOT)], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    last = done.stderr.strip().splitlines()[-1]
    assert f"has a package 'datasets', and this program has imported another one, {tmp_path}" in last
    assert last.endswith("load the checkout first, or in a process of its own")
