"""The command on held-out identities of the miniature, and `Predictor.verify`."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import save_untrained
from datasets.build import read_splits
from errors import UserError
from inference import Predictor, Triple
from inference.calibration import Calibration, CalibrationError, PairsAcross, calibrate
from inference.predictor import restrict, triple_of
from structures import Modality
from tools.calibrate import main
from trained import load_trained

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


@pytest.fixture(scope="module")
def triples(mini_root: Path) -> list[Triple]:
    folder = mini_root / "RGBNT201" / "test"
    names = sorted(path.name for path in (folder / "RGB").iterdir())
    return [Triple(folder / "RGB" / name, folder / "NI" / name, folder / "TI" / name) for name in names]


@pytest.fixture(autouse=True)
def _keep_log_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command sets up its own log, which would take the place of pytest's."""
    monkeypatch.setattr("tools.calibrate.setup_log", lambda: logging.getLogger().setLevel(logging.INFO))


def read_threshold(file: Path, name: str = "RGB+NI+TI") -> float:
    threshold: float = json.loads(file.read_text())["thresholds"][name]["threshold"]
    return threshold


def test_what_is_written(file: Path) -> None:
    """Four identities with two triples under each of two cameras: 8 x 8 pairs across, 16 of one person."""
    content = json.loads(file.read_text())
    assert (content["split"], content["protocol"], content["wanted_rate"]) == ("validation", "camera", 0.25)
    thresholds = content["thresholds"]
    assert list(thresholds) == ["RGB+NI+TI", "NI+TI", "RGB+TI", "RGB+NI", "TI", "NI", "RGB"]
    for found in thresholds.values():
        assert (found["identities"], found["pairs_of_one_person"]) == (4, 16)
        assert found["pairs_of_different_people"] == 48
        assert found["false_match_rate"] == 0.25
    curve, *others = (found["curve"] for found in thresholds.values())
    assert len(curve["threshold"]) == len(curve["false_match_rate"]) > 20
    assert not any(others), "the curve is that of complete triples"
    for ending in (".pdf", ".png"):
        assert file.with_suffix(ending).stat().st_size > 1000


def test_verify(file: Path, weights: Path, triples: list[Triple]) -> None:
    """Each combination of modalities has its own threshold, and both answers occur."""
    predictor = Predictor.load(weights, calibration=file)
    for name, kept in (("RGB+NI+TI", tuple(Modality)), ("RGB", (Modality.RGB,))):
        chosen = [restrict(triple, kept) for triple in triples]
        features, threshold = predictor.embed(chosen), read_threshold(file, name)
        answers = set()
        for other, feature in zip(chosen[1:], features[1:], strict=True):
            found = predictor.verify(chosen[0], other)
            assert found.distance == pytest.approx(float(torch.dist(features[0], feature)), abs=1e-5)
            assert (found.threshold, found.same) == (threshold, found.distance <= threshold)
            answers.add(found.same)
        assert answers == {True, False}
        assert predictor.verify(chosen[0], chosen[0]).same
    assert read_threshold(file, "RGB") != read_threshold(file)
    with pytest.raises(UserError, match=r"make one with python -m tools\.calibrate"):
        Predictor.load(weights).verify(triples[0], triples[1])


def test_verify_needs_equal_modalities_with_a_threshold(
    file: Path, weights: Path, triples: list[Triple], tmp_path: Path
) -> None:
    predictor = Predictor.load(weights, calibration=file)
    with pytest.raises(
        UserError, match=r"one triple has RGB\+NI\+TI and the other RGB, and a threshold is for"
    ):
        predictor.verify(triples[0], Triple(rgb=triples[1].rgb))
    with pytest.raises(UserError, match="a triple is a str"):
        predictor.verify(triples[0], "a.jpg")  # type: ignore[arg-type]
    content = json.loads(file.read_text())
    del content["thresholds"]["TI"]
    (tmp_path / "less.json").write_text(json.dumps(content))
    predictor = Predictor.load(weights, calibration=tmp_path / "less.json")
    with pytest.raises(
        UserError, match=r"has no threshold for TI, only for RGB\+NI\+TI, NI\+TI, .*; give images"
    ):
        predictor.verify(Triple(ti=triples[0].ti), Triple(ti=triples[1].ti))


def test_the_share_of_false_matches_is_kept_with_missing_images(file: Path, weights: Path) -> None:
    """On the pairs that it was measured on; the threshold of complete triples would let others match."""
    trained = load_trained(weights)
    records = read_splits(trained.cfg)[0].validation
    ids, cameras = (np.array([getattr(r, name) for r in records]) for name in ("person_id", "camera_id"))
    is_pair = (ids[:, None] != ids) & (cameras[:, None] < cameras)
    predictor = Predictor.load(weights)
    features = predictor.embed([restrict(triple_of(record), (Modality.RGB,)) for record in records])
    distances = torch.cdist(features, features).numpy()[is_pair]
    assert (distances <= read_threshold(file, "RGB")).mean() == 0.25
    assert (distances <= read_threshold(file)).mean() != 0.25


def test_a_list_of_two_modalities_of_which_one_alone_cannot_be_measured(
    mini_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is left out with a warning. A triple without TI counts for RGB alone."""
    lines = ["rgb,ni,ti,id,camera,split"]
    for number, rgb in enumerate(sorted((mini_root / "RGBNT201" / "test" / "RGB").iterdir())):
        thermal = rgb.parent.parent / "TI" / rgb.name if number else ""
        lines.append(f"{rgb},,{thermal},{int(rgb.name[:6])},{rgb.name[10]},test")
    (tmp_path / "list.csv").write_text("\n".join(lines))
    settings = ["DATASETS.NAMES", "CSV", "DATASETS.CSV", str(tmp_path / "list.csv")]
    command = [str(save_untrained(tmp_path / "best.pth", *settings)), str(tmp_path / "out.json"), *RATE]
    calls = 0

    def fail_second(pairs: PairsAcross, rate: float) -> Calibration:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise CalibrationError("the descriptors of different people are equal")
        return calibrate(pairs, rate)

    monkeypatch.setattr("tools.calibrate.calibrate", fail_second)
    main([*command, "--split", "test"])
    thresholds = json.loads((tmp_path / "out.json").read_text())["thresholds"]
    pairs = {name: found["pairs_of_different_people"] for name, found in thresholds.items()}
    assert pairs == {"RGB+TI": 42, "RGB": 48}
    assert "there is no threshold for TI: the descriptors of different people are equal" in caplog.text
    table = [line.split() for line in caplog.text.splitlines()]
    assert ["modalities", "threshold", "false-match", "false-non-match"] in table
    assert [line[0] for line in table if line[:1] in (["RGB+TI"], ["RGB"], ["TI"])] == ["RGB+TI", "RGB"]


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


def test_the_figure_does_not_replace_the_thresholds(weights: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"out\.png does not end in \.json; name OUT\.json"):
        main([str(weights), str(tmp_path / "out.png"), *RATE, "--figure"])
    assert list(tmp_path.iterdir()) == []


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
