"""The two commands, from the outside, on a drawn miniature."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import test_net as test_entry
import train_net as train_entry
from conftest import ROOT, SMALL_MODEL
from errors import UserError


def train(folder: Path, settings: list[str], *more: str) -> None:
    train_entry.main(["--config_file", str(SMALL_MODEL), *settings, "OUTPUT_DIR", str(folder), *more])


def losses_of(folder: Path) -> list[dict[str, float]]:
    epochs = json.loads((folder / "metrics.json").read_text())["epochs"]
    return [{key: value for key, value in epoch.items() if "/" in key} for epoch in epochs]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, mini_settings: list[str]) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "first"
    train(folder, mini_settings)
    return folder


def test_training_writes_a_whole_run(run: Path) -> None:
    names = {path.name for path in run.iterdir()}
    assert {"config.yml", "log.txt", "metrics.json", "last.pth", "best.pth", "tensorboard"} <= names
    metrics = json.loads((run / "metrics.json").read_text())
    assert set(metrics["summary"]) == {"last epoch", "best on test", "untrained", "raw pixels"}
    assert set(metrics["summary"]["last epoch"]) >= {
        "pattern_1",
        "pattern_2",
        "pattern_3",
        "kept_patch_precision",
    }
    assert metrics["summary"]["last epoch"]["samples"] == 16
    assert set(metrics["cost"]["parts"]) == {"backbone", "PIFE", "SDTPS", "heads", "total"}
    log = (run / "log.txt").read_text()
    for text in ("original + fused", "control: raw pixels", "kept patches on the person", "GFLOPs"):
        assert text in log


def test_the_same_seed_gives_identical_losses_with_0_and_2_workers(
    run: Path, tmp_path: Path, mini_settings: list[str]
) -> None:
    train(tmp_path / "again", mini_settings, "DATALOADER.NUM_WORKERS", "2")
    assert losses_of(tmp_path / "again") == losses_of(run)
    train(tmp_path / "other", mini_settings, "SOLVER.SEED", "2")
    assert losses_of(tmp_path / "other") != losses_of(run)


def test_test_net_repeats_the_result_of_training(run: Path, tmp_path: Path) -> None:
    arguments = ["--config_file", str(run / "config.yml"), "--metrics", str(tmp_path / "test.json")]
    test_entry.main([*arguments, "TEST.WEIGHT", str(run / "last.pth")])
    tested = json.loads((tmp_path / "test.json").read_text())
    trained = json.loads((run / "metrics.json").read_text())["summary"]["last epoch"]
    for pattern in ("pattern_1", "pattern_2", "pattern_3"):
        assert tested["result"][pattern] == trained[pattern]


def test_settings_of_the_evaluation_do_what_they_say(run: Path, tmp_path: Path) -> None:
    def tested(*settings: str) -> dict[str, dict[str, float]]:
        file = tmp_path / "test.json"
        arguments = ["--config_file", str(run / "config.yml"), "--metrics", str(file)]
        test_entry.main([*arguments, "TEST.WEIGHT", str(run / "last.pth"), *settings])
        return {name: json.loads(file.read_text())["result"][name] for name in ("pattern_1", "pattern_3")}

    plain = tested()
    assert tested("TEST.IMS_PER_BATCH", "5") == plain
    for changed in (["TEST.FEAT_NORM", "no"], ["TEST.NECK_FEAT", "after"], ["TEST.MISS", "rt"]):
        assert tested(*changed) != plain, changed


def test_all_settings_of_missing_modalities_at_once(run: Path, tmp_path: Path) -> None:
    weights = ["TEST.WEIGHT", str(run / "last.pth")]
    arguments = ["--config_file", str(run / "config.yml"), "--metrics", str(tmp_path / "test.json")]
    test_entry.main([*arguments, "--missing", "all", "--report", str(tmp_path / "report"), *weights])
    content = json.loads((tmp_path / "test.json").read_text())
    assert list(content["missing"]) == ["complete", "r", "n", "t", "rn", "rt", "nt"]
    assert content["result"] == content["missing"]["complete"]
    assert [row["person"] for row in content["breakdown"]["identities"]] == [9, 10, 11, 12]
    assert (tmp_path / "report" / "index.html").is_file()
    assert (tmp_path / "report" / "data" / "ranking_nt_3.js").is_file()
    summary = (tmp_path / "report" / "data" / "summary.js").read_text()
    assert '"training":{"split":"test","epoch":[1,2]' in summary  # from the run that the weights lie in
    assert '"name":"untrained"' in summary

    test_entry.main([*arguments, *weights, "TEST.MISS", "nt"])
    alone = json.loads((tmp_path / "test.json").read_text())["result"]
    for pattern in ("pattern_1", "pattern_2", "pattern_3"):
        for score in ("mAP", "rank_1"):
            assert alone[pattern][score] == pytest.approx(content["missing"]["nt"][pattern][score])


def test_re_ranking_changes_the_scores_and_says_so(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    arguments = ["--config_file", str(run / "config.yml"), "--metrics", str(tmp_path / "test.json")]
    with caplog.at_level("INFO"):
        test_entry.main([*arguments, "TEST.WEIGHT", str(run / "last.pth"), "TEST.RE_RANKING", "yes"])
    result = json.loads((tmp_path / "test.json").read_text())["result"]
    trained = json.loads((run / "metrics.json").read_text())["summary"]["last epoch"]
    assert result["re_ranked"] is True
    assert result["pattern_3"]["mAP"] != trained["pattern_3"]["mAP"]


def test_features_are_saved_one_row_per_distinct_test_image(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "features.npz"
    arguments = ["--config_file", str(run / "config.yml"), "--save_features", str(file)]
    test_entry.main([*arguments, "TEST.WEIGHT", str(run / "last.pth")])
    saved = np.load(file)
    assert saved["features_1"].shape == saved["features_2"].shape == (16, 192)
    assert np.array_equal(saved["features_3"], np.hstack([saved["features_1"], saved["features_2"]]))
    assert not np.allclose(np.linalg.norm(saved["features_1"], axis=1), 1)  # before normalisation
    assert saved["names"][0] == "000009_cam1_0_00.jpg"
    assert sorted(set(saved["person_ids"])) == [9, 10, 11, 12]
    assert saved["camera_ids"].tolist() == [0, 0, 1, 1] * 4
    assert not saved["scene_ids"].any()
    assert saved["is_query"].all()
    assert saved["is_gallery"].all()


def test_gumbel_trains(tmp_path: Path, mini_settings: list[str]) -> None:
    learned = ["MODEL.SDTPS_BETA", "0.25", "TEST.CONTROLS", "False"]  # the score has a learned part
    for switch in ("True", "False"):
        train(tmp_path / switch, mini_settings, *learned, "MODEL.SDTPS_USE_GUMBEL", switch)
    with_gumbel, without = losses_of(tmp_path / "True"), losses_of(tmp_path / "False")
    assert with_gumbel != without
    for epoch_with, epoch_without in zip(with_gumbel, without, strict=True):
        for name, value in epoch_with.items():
            assert value == pytest.approx(epoch_without[name], rel=0.5)


def test_all_parts_together_train(tmp_path: Path, mini_settings: list[str]) -> None:
    train(tmp_path / "all", mini_settings, "MODEL.HDM", "True", "MODEL.ATM", "True", "SOLVER.MAX_EPOCHS", "2")
    metrics = json.loads((tmp_path / "all" / "metrics.json").read_text())
    assert {"ori/id", "sdtps/triplet", "moe/triplet"} <= set(metrics["epochs"][0])
    weights = torch.load(tmp_path / "all" / "last.pth", weights_only=True)["model"]
    assert any(name.startswith("branches.moe.atmoe.") for name in weights)


def test_a_second_run_into_the_same_folder_is_refused(run: Path, mini_settings: list[str]) -> None:
    before = (run / "best.pth").read_bytes()
    with pytest.raises(ValueError, match="already holds a run"):
        train(run, mini_settings)
    assert (run / "best.pth").read_bytes() == before


def test_overwriting_leaves_foreign_files_alone(tmp_path: Path, mini_settings: list[str]) -> None:
    folder = tmp_path / "run"
    short = ["SOLVER.MAX_EPOCHS", "1", "SOLVER.WARMUP_ITERS", "0", "TEST.CONTROLS", "False"]
    train(folder, mini_settings, *short, "SOLVER.CHECKPOINT_PERIOD", "1")
    mine = [
        folder / name for name in ("epoch_7.pth", "notes.txt", "tensorboard/mine", "report/data/summary.js")
    ]
    for path in mine:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("precious")
    events = set(folder.glob("tensorboard/events*"))
    assert len(events) == 1
    train(folder, mini_settings, *short, "--overwrite")
    assert {path.read_text() for path in mine} == {"precious"}
    assert not (folder / "epoch_1.pth").exists()
    assert not events & set(folder.glob("tensorboard/*"))

    (folder / "epoch_1.pth").write_text("precious")
    with pytest.raises(ValueError, match=r"epoch_1\.pth is not in"):
        train(folder, mini_settings, *short, "SOLVER.CHECKPOINT_PERIOD", "1", "--overwrite")
    assert (folder / "epoch_1.pth").read_text() == "precious"
    assert (folder / "last.pth").is_file()


TOOLS = (
    "tools.check_dataset",
    "tools.convert",
    "tools.describe_images",
    "tools.export",
    "tools.figures",
    "tools.search",
    "tools.search query",
    "studies",
    "studies slim",
)


@pytest.mark.parametrize("command", ["train_net.py", "test_net.py", *(f"-m {name}" for name in TOOLS)])
def test_help_is_answered_before_the_slow_imports(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *command.split(), "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "usage:" in done.stdout
    if command.endswith(".py"):
        assert "--config_file" in done.stdout
        assert "KEY VALUE" in done.stdout
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert {"argparse", "engine"} <= imported
    assert not imported & {"torch", "numpy", "timm", "yacs", "matplotlib", "PIL", "tqdm"}


@pytest.mark.parametrize("option", ["--metrics", "--save_features", "--report"])
def test_an_empty_name_for_an_output_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        test_entry.main([option, "", "TEST.WEIGHT", "w.pth"])
    assert caught.value.code == 2
    assert f"argument {option}: the name is empty" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["train_net.py", "test_net.py", "-m tools.check_dataset"])
def test_an_interrupt_during_the_imports_ends_without_a_stack_trace(command: str, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", *command.split(), "OUTPUT_DIR", str(tmp_path / "run")],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.endswith((" numpy\n", " torch.version\n")):
            process.send_signal(signal.SIGINT)
            break
    try:
        _, rest = process.communicate(timeout=60)
    finally:
        process.kill()  # a command that goes on would train the demo
    assert process.returncode == 130
    assert "interrupted" in rest
    assert "Traceback" not in rest


@pytest.mark.parametrize("command", ["test_net.py", "-m tools.check_dataset"])
def test_a_command_whose_output_nobody_reads_ends(command: str, run: Path) -> None:
    """As `test_net.py | head -0`."""
    words = ["--config_file", str(run / "config.yml"), "TEST.WEIGHT", str(run / "last.pth")]
    process = subprocess.Popen(
        [sys.executable, *command.split(), *words, "DATALOADER.NUM_WORKERS", "2"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.wait(timeout=90) == 141
    assert process.stderr.read() == ""


def test_errors_of_the_user_are_one_line_without_stack_trace(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "train_net.py", "MODEL.USE_SDTP", "True", "OUTPUT_DIR", str(tmp_path / "run")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    output = (done.stdout + done.stderr).strip()
    assert "MODEL.USE_SDTPS" in output
    assert len(output.splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("train_net.py MODEL.HDMM True", "unknown key 'MODEL.HDMM'; did you mean MODEL.HDM"),
        ("train_net.py MODEL.SDTPS_BETA 3", "MODEL.SDTPS_BETA must be"),
        ("test_net.py TEST.WEIGT x.pth", "unknown key 'TEST.WEIGT'; did you mean TEST.WEIGHT?"),
    ],
)
def test_wrong_settings_are_refused_before_the_slow_imports(command: str, message: str) -> None:
    words = [sys.executable, "-X", "importtime", *command.split()]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert re.fullmatch(rf"[-\d]+ [:\d]+ ERROR .*{re.escape(message)}.*\n", done.stdout)
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert not imported & {"torch", "numpy", "timm"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("MODEL.TRANSFORMER_TYPE vit_tiny_stem_patch9", "'vit_tiny_stem_patch9' is unknown"),
        ("MODEL.TRANSFORMER_TYPE swin_tiny_patch4_window7_224", "it is no ViT with a class token"),
        ("MODEL.SLIM_LAYERS [99]", "names blocks that do not exist"),
        ("MODEL.PRETRAIN_PATH_T nowhere.pt", "weight file nowhere.pt does not exist"),
    ],
)
def test_a_model_that_cannot_be_built_is_refused_before_the_data_set_is_drawn(
    settings: str, message: str, tmp_path: Path
) -> None:
    places = ["DATASETS.ROOT_DIR", str(tmp_path / "data"), "OUTPUT_DIR", str(tmp_path / "run")]
    with pytest.raises(UserError, match=message):
        train_entry.main(["--config_file", str(SMALL_MODEL), *settings.split(), *places])
    assert list(tmp_path.iterdir()) == []
