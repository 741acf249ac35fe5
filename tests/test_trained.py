"""A checkpoint is all that a trained model needs: its configuration, its sizes, its cameras."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import test_net as test_entry
import train_net as train_entry
from config import ConfigError, get_cfg, load_config
from config.compare import list_differences
from config.schema import TABLE
from conftest import SMALL_MODEL
from datasets.build import build_test_data
from errors import UserError
from modeling.make_model import make_model
from structures import ModalBatch
from trained import load_trained

CAMERAS = ["MODEL.SIE_CAMERA", "True", "TEST.CONTROLS", "False", "SOLVER.EVAL_PERIOD", "2"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, mini_settings: list[str]) -> Path:
    """Two epochs with a camera embedding, which is then made large enough to matter."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    train_entry.main(["--config_file", str(SMALL_MODEL), *mini_settings, *CAMERAS, "OUTPUT_DIR", str(folder)])
    content = torch.load(folder / "last.pth", weights_only=True)
    generator = torch.Generator().manual_seed(0)
    embedding = content["model"]["backbone.camera_embed"]
    embedding.copy_(torch.randn(embedding.shape, generator=generator))
    torch.save(content, folder / "last.pth")
    return folder


def score(folder: Path, weights: Path, *words: str) -> dict[str, Any]:
    test_entry.main([*words, "--metrics", str(folder / "test.json"), "TEST.WEIGHT", str(weights)])
    result: dict[str, Any] = json.loads((folder / "test.json").read_text())["result"]
    del result["seconds"]
    return result


def change(source: Path, target: Path, **entries: Any) -> Path:
    """A copy of a checkpoint with other entries; None takes one away."""
    content = {**torch.load(source, weights_only=True), **entries}
    torch.save({name: value for name, value in content.items() if value is not None}, target)
    return target


def test_the_checkpoint_alone_is_enough(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = score(tmp_path, run / "last.pth")
    assert "WARNING" not in capsys.readouterr().out
    assert alone == score(tmp_path, run / "last.pth", "--config_file", str(run / "config.yml"))


def test_a_model_says_what_its_training_started_from(run: Path, tmp_path: Path) -> None:
    assert load_trained(run / "last.pth").initial_weights == "random"
    assert load_trained(change(run / "last.pth", tmp_path / "old.pth", progress=3)).initial_weights == ""


def test_settings_that_differ_are_listed(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = score(tmp_path, run / "last.pth")
    capsys.readouterr()
    other = score(tmp_path, run / "last.pth", "MODEL.SIE_COE", "3.0", "SOLVER.BASE_LR", "0.1")
    log = capsys.readouterr().out
    assert "MODEL.SIE_COE is 3.0, in the checkpoint 1.0" in log
    assert "BASE_LR" not in log
    assert other["pattern_3"]["mAP"] != plain["pattern_3"]["mAP"]


def test_only_what_the_file_sets_overrides_the_checkpoint(run: Path, tmp_path: Path) -> None:
    (tmp_path / "some.yml").write_text("MODEL:\n  SIE_COE: 2.0\n")
    trained = load_trained(run / "last.pth", ["TEST.MISS", "t"], config_file=tmp_path / "some.yml")
    assert (trained.cfg.MODEL.SIE_COE, trained.cfg.TEST.MISS) == (2.0, "t")
    assert trained.cfg.MODEL.SIE_CAMERA is True  # from the checkpoint; the default is False
    assert str(run / "last.pth") == trained.cfg.TEST.WEIGHT


def test_keys_of_other_versions_are_reported_once(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = torch.load(run / "last.pth", weights_only=True)["config"]
    lines = [line for line in text.splitlines() if "SLIM_KEEP" not in line]
    config = "\n".join(["FUTURE:\n  KEY: 1", *lines, "NEW: 2"])
    trained = load_trained(change(run / "last.pth", tmp_path / "other.pth", config=config))
    assert get_cfg().MODEL.SLIM_KEEP == trained.cfg.MODEL.SLIM_KEEP
    assert caplog.text.count("settings that this version does not know: FUTURE, NEW") == 1


def test_an_override_without_a_value_is_named(run: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs KEY VALUE pairs, but 'MODEL\.SIE_COE' stands alone"):
        load_trained(run / "last.pth", ["MODEL.SIE_COE"])


@pytest.mark.parametrize("config", [3, "[", "- 1", "MODEL: {SIE_COE: [1]}"])
def test_a_damaged_configuration_is_named(run: Path, tmp_path: Path, config: Any) -> None:
    path = change(run / "last.pth", tmp_path / "other.pth", config=config)
    with pytest.raises(ConfigError, match=r"other\.pth"):
        load_trained(path)


@pytest.mark.parametrize(
    "data",
    [
        3,
        {},
        {"classes": -1, "cameras": [0], "scenes": [0]},
        {"classes": 10**12, "cameras": [0], "scenes": [0]},
        {"classes": "8"},
    ],
)
def test_a_damaged_description_of_the_data_is_named(run: Path, tmp_path: Path, data: Any) -> None:
    with pytest.raises(UserError, match=r"other\.pth is damaged: its entry `data`"):
        load_trained(change(run / "last.pth", tmp_path / "other.pth", data=data))


def test_testing_needs_no_training_images(
    run: Path, tmp_path: Path, mini_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = score(tmp_path, run / "last.pth")
    shutil.copytree(mini_root / "RGBNT201" / "test", tmp_path / "RGBNT201" / "test")
    here = ["DATASETS.ROOT_DIR", str(tmp_path)]
    assert score(tmp_path, run / "last.pth", *here) == expected
    assert "train" not in capsys.readouterr().out.partition("split ")[2].partition("INFO")[0]

    # A checkpoint of version 1 does not say which camera has which row: as they are counted, with a warning.
    old = change(run / "last.pth", tmp_path / "old.pth", data=None)
    assert score(tmp_path, old, *here) == expected
    assert "does not say which cameras its 2 embeddings are of" in capsys.readouterr().out
    assert score(tmp_path, old) == expected  # with the training split
    assert "does not say which" not in capsys.readouterr().out


def test_cameras_keep_their_rows(run: Path, tmp_path: Path, mini_root: Path) -> None:
    """A test split in which the first camera is missing must not move the second one to its row."""
    shutil.copytree(mini_root / "RGBNT201" / "test", tmp_path / "RGBNT201" / "test")
    for path in (tmp_path / "RGBNT201").rglob("*_cam1_*"):
        path.rename(path.with_name(path.name.replace("_cam1_", "_cam7_")))
    trained = load_trained(run / "last.pth", ["DATASETS.ROOT_DIR", str(tmp_path)])

    data = build_test_data(trained.cfg, trained.split)
    assert data.camera_names == ("cam1", "cam2", "cam7")
    assert {camera for batch in data.test.loader for camera in batch.camera_ids.tolist()} == {1, 2}


def test_the_table_of_settings_that_do_not_matter_is_right(make_batch: Any) -> None:
    """Each setting of the model in it is changed; the weights still fit, and the features stay the same."""
    base = ["MODEL.SDTPS_BETA", "0.25", "MODEL.SLIM_LAYERS", "[0]", "SOLVER.MAX_EPOCHS", "5"]
    base += ["INPUT.SIZE_TRAIN", "[32, 16]", "INPUT.SIZE_TEST", "[32, 16]"]
    other = {
        "MODEL.DEVICE": "cpu",
        "MODEL.NAME": "x",
        "MODEL.PRETRAIN_PATH_T": "x",
        "MODEL.IF_LABELSMOOTH": "off",
        "MODEL.FROZEN": "True",
        "MODEL.NO_MARGIN": "False",
        "MODEL.SDTPS_USE_GUMBEL": "True",
    }
    batch: ModalBatch = make_batch([0, 1])
    torch.manual_seed(0)
    plain = make_model(load_config(SMALL_MODEL, base), 4, 2).eval()
    expected = plain(batch).heads[-1].features
    training = [row.name for row in TABLE if row.changes == "weights" and row.name.startswith("MODEL.")]
    assert len(training) > len(other)
    for key in training:
        cfg = load_config(SMALL_MODEL, [*base, key, other.get(key, "0.3")])
        assert not list_differences(load_config(SMALL_MODEL, base), cfg), key
        model = make_model(cfg, 4, 2).eval()
        model.load_state_dict(plain.state_dict())
        assert torch.equal(model(batch).heads[-1].features, expected), key


def test_a_setting_without_effect_is_no_difference() -> None:
    trained, cfg = load_config(SMALL_MODEL), load_config(SMALL_MODEL, ["MODEL.SIE_COE", "3.0"])
    assert list_differences(trained, cfg) == []
    with_cameras = ["MODEL.SIE_CAMERA", "True"]
    trained, cfg = (
        load_config(SMALL_MODEL, [*with_cameras, *more]) for more in ([], ["MODEL.SIE_COE", "3.0"])
    )
    assert list_differences(trained, cfg) == ["MODEL.SIE_COE is 3.0, in the checkpoint 1.0"]


def test_the_device_of_the_training_machine_does_not_count(run: Path, tmp_path: Path) -> None:
    content = torch.load(run / "last.pth", weights_only=True)
    config = (
        content["config"].replace("DEVICE: auto", "DEVICE: cuda").replace("DEVICE_ID: '0'", "DEVICE_ID: '3'")
    )
    assert "DEVICE: cuda" in config
    assert "DEVICE_ID: '3'" in config
    weights = change(run / "last.pth", tmp_path / "other.pth", config=config)
    options = load_trained(weights).cfg.MODEL
    assert (options.DEVICE, options.DEVICE_ID) == ("auto", "0")
    assert load_trained(weights, ["MODEL.DEVICE_ID", "1"]).cfg.MODEL.DEVICE_ID == "1"


def test_scores_are_kept_where_the_cost_cannot_be_measured(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mini_settings: list[str]
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("cannot trace")

    monkeypatch.setattr("modeling.cost.measure_cost", fail)
    words = ["--report", str(tmp_path / "report"), "--metrics", str(tmp_path / "metrics.json")]
    test_entry.main([*words, "TEST.WEIGHT", str(run / "last.pth")])
    found = json.loads((tmp_path / "metrics.json").read_text())
    assert "cost" not in found
    assert found["result"]["pattern_3"]["mAP"] > 0
    assert '"cost":null' in (tmp_path / "report" / "data" / "summary.js").read_text().replace(" ", "")
    own = tmp_path / "own"
    short = ["SOLVER.MAX_EPOCHS", "1", "SOLVER.WARMUP_ITERS", "0", "TEST.CONTROLS", "False"]
    train_entry.main(["--config_file", str(SMALL_MODEL), *mini_settings, *short, "OUTPUT_DIR", str(own)])
    trained = json.loads((own / "metrics.json").read_text())
    assert "cost" not in trained
    assert "last epoch" in trained["summary"]
