"""The command on held-out identities of the miniature, and `Predictor.verify`."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch

from conftest import save_untrained
from errors import UserError
from inference import Predictor, Triple
from tools.calibrate import main

RATE = ["--fmr", "0.25"]  # of 48 pairs


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory, mini_root: Path) -> Path:
    settings = {
        "DATASETS.NAMES": "RGBNT201",
        "DATASETS.ROOT_DIR": str(mini_root),
        "DATASETS.VAL_IDS": "4",
        "DATALOADER.NUM_INSTANCE": "2",
        "SOLVER.IMS_PER_BATCH": "4",
    }
    words = [word for pair in settings.items() for word in pair]
    return save_untrained(tmp_path_factory.mktemp("weights") / "best.pth", *words, classes=4)


@pytest.fixture(scope="module")
def file(weights: Path) -> Path:
    main([str(weights), str(weights.parent / "out.json"), *RATE, "--figure"])
    return weights.parent / "out.json"


@pytest.fixture(autouse=True)
def _keep_log_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command sets up its own log, which would take the place of pytest's."""
    monkeypatch.setattr("tools.calibrate.setup_log", lambda: logging.getLogger().setLevel(logging.INFO))


def test_what_is_written(file: Path) -> None:
    """Four identities with two triples under each of two cameras: 8 x 8 pairs across, 16 of one person."""
    found = json.loads(file.read_text())
    assert (found["identities"], found["pairs_of_one_person"]) == (4, 16)
    assert found["pairs_of_different_people"] == 48
    assert found["false_match_rate"] == 0.25
    assert (found["split"], found["protocol"], found["wanted_rate"]) == ("validation", "camera", 0.25)
    assert len(found["curve"]["threshold"]) == len(found["curve"]["false_match_rate"]) > 20
    for ending in (".pdf", ".png"):
        assert file.with_suffix(ending).stat().st_size > 1000


def test_verify(file: Path, weights: Path, mini_root: Path) -> None:
    predictor = Predictor.load(weights, calibration=file)
    folder = mini_root / "RGBNT201" / "test"
    names = sorted(path.name for path in (folder / "RGB").iterdir())
    triples = [Triple(folder / "RGB" / name, folder / "NI" / name, folder / "TI" / name) for name in names]
    features = predictor.embed(triples)
    threshold = json.loads(file.read_text())["threshold"]
    answers = set()
    for other, feature in zip(triples[1:], features[1:], strict=True):
        found = predictor.verify(triples[0], other)
        assert found.distance == pytest.approx(float(torch.dist(features[0], feature)), abs=1e-5)
        assert (found.threshold, found.same) == (threshold, found.distance <= threshold)
        answers.add(found.same)
    assert answers == {True, False}
    assert predictor.verify(triples[0], triples[0]).same
    with pytest.raises(UserError, match=r"make one with python -m tools\.calibrate"):
        Predictor.load(weights).verify(triples[0], triples[1])


def test_a_calibration_of_something_else_is_refused(file: Path, weights: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.pth"
    content = torch.load(weights, weights_only=True)
    next(iter(content["model"].values())).add_(1)
    torch.save(content, other)
    with pytest.raises(UserError, match=r"with the weights .*best\.pth, which are not those of .*other\.pth"):
        Predictor.load(other, calibration=file)
    with pytest.raises(UserError, match="with return pattern 3, not 1"):
        Predictor.load(weights, calibration=file, pattern=1)
    with pytest.raises(UserError, match=r"with TEST\.NECK_FEAT before, not after"):
        Predictor.load(weights, ["TEST.NECK_FEAT", "after"], calibration=file)


def test_the_test_split_only_if_asked_for(
    weights: Path, mini_root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ["DATASETS.NAMES", "RGBNT201", "DATASETS.ROOT_DIR", str(mini_root)]
    none = save_untrained(tmp_path / "none.pth", *settings)
    out = tmp_path / "out.json"
    with pytest.raises(UserError, match=r"none\.pth held out no identities .* or add --split test"):
        main([str(none), str(out), *RATE])
    assert not out.exists()
    main([str(none), str(out), *RATE, "--split", "test"])
    assert "calibrating on the TEST split" in caplog.text
    assert json.loads(out.read_text())["split"] == "test"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--fmr", "0.2"], r"48 pairs of different people let expect 9\.6 false matches, and 10 are needed"),
        (["--fmr", "0"], "--fmr must be above 0 and below 1, not 0"),
        ([*RATE, "DATASETS.VAL_IDS", "2"], r"DATASETS\.VAL_IDS was fixed in training"),
        ([*RATE, "--pca", "no.npz"], r"no\.npz cannot be read"),
        ([*RATE, "DATASETS.NAMES", "CSV", "DATASETS.CSV", "no.csv"], r"there is no CSV file no\.csv"),
    ],
)
def test_mistakes(weights: Path, tmp_path: Path, options: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        main([str(weights), str(tmp_path / "out.json"), *options])
    assert not (tmp_path / "out.json").exists()


def test_a_data_set_with_other_identities_is_refused(weights: Path, mini_root: Path, tmp_path: Path) -> None:
    """With another number of identities, others would be held out."""
    lines = ["rgb,ni,ti,id,camera,split"]
    for folder, split in (("train_171", "train"), ("test", "test")):
        for rgb in sorted((mini_root / "RGBNT201" / folder / "RGB").iterdir()):
            if rgb.name[:6] != "000001":
                lines.append(f"{rgb},,,{rgb.name[:6]},{rgb.name[10]},{split}")
    (tmp_path / "list.csv").write_text("\n".join(lines))
    with pytest.raises(UserError, match="was trained on 4 identities, which are not those of the data set"):
        main([str(weights), str(tmp_path / "out.json"), *RATE, "DATASETS.NAMES", "CSV",
              "DATASETS.CSV", str(tmp_path / "list.csv")])  # fmt: skip
