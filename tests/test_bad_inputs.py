"""Bad input of every kind, each with the sentence it gets: the rows of the table in docs/reliability.md."""

import errno
import fcntl
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import test_net as test_entry
import train_net as train_entry
from config import load_config
from conftest import ROOT, SMALL_MODEL, be_rank_1
from datasets.build import build_data
from datasets.synthetic import SyntheticSpec, ensure_synthetic
from engine.checkpoint import save_checkpoint
from engine.run_folder import list_run_files
from miniatures import draw_miniature
from modeling.make_model import make_model
from structures import UserError
from tools.convert import main as convert

PAGE = ROOT / "docs" / "reliability.md"
NAME = "000001_cam1_0_00.jpg"
BOMB = "a0: &a0 [x, x]\n" + "\n".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60))


class Scene:
    """A folder with a drawn miniature, and the commands of the project run on it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.monkeypatch = monkeypatch
        self.run = folder / "run"
        spec = SyntheticSpec(
            train_ids=4, test_ids=2, cameras=2, train_shots=1, test_shots=1, height=128, width=64
        )
        self.data = ensure_synthetic(folder, spec=spec).rename(folder / "RGBNT201")

    def arguments(self, *more: str, output: str = "run") -> list[str]:
        settings = {
            "DATASETS.NAMES": "RGBNT201",
            "DATASETS.ROOT_DIR": str(self.folder),
            "DATALOADER.NUM_INSTANCE": "2",
            "SOLVER.IMS_PER_BATCH": "4",
            "SOLVER.MAX_EPOCHS": "1",
            "SOLVER.WARMUP_ITERS": "0",
            "TEST.CONTROLS": "False",
            "OUTPUT_DIR": str(self.folder / output),
        }
        words = [word for pair in settings.items() for word in pair]
        return ["--config_file", str(SMALL_MODEL), *words, *more]

    def train(self, *more: str, output: str = "run") -> None:
        train_entry.main(self.arguments(*more, output=output))

    def test(self, weights: Path | str, *more: str) -> None:
        test_entry.main([*self.arguments(*more), "TEST.WEIGHT", str(weights)])

    def write(self, name: str, content: bytes | str) -> Path:
        path = self.folder / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def save(self, content: object) -> Path:
        torch.save(content, self.folder / "weights.pth")
        return self.folder / "weights.pth"

    def small_state(self) -> dict[str, Any]:
        return make_model(load_config(SMALL_MODEL, self.arguments()[2:]), 4, 2).state_dict()


class _Code:
    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, ("code_was_run",)


def _config(*words: str) -> Callable[[Scene], object]:
    return lambda scene: scene.train(*words)


def _full_disk(scene: Scene) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    scene.monkeypatch.setattr(os, "fsync", fail)
    scene.train()


def _left_in_the_environment(scene: Scene) -> None:
    scene.monkeypatch.setenv("RANK", "1")
    scene.train()


def _test_with_report(scene: Scene, folder: str) -> None:
    scene.test(scene.save(scene.small_state()), "--report", str(scene.folder / folder))


def _foreign_report(scene: Scene) -> None:
    (scene.folder / "thesis").mkdir()
    scene.write("thesis/chapter.txt", "precious")
    _test_with_report(scene, "thesis")


def _output(scene: Scene, *words: str) -> None:
    """Name an output of test_net.py, which must be refused before the weights are read."""
    weights = scene.save({"model": "precious"})
    before = weights.read_bytes()

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("the destination must be checked first")

    scene.monkeypatch.setattr(test_entry, "load_trained", fail)
    try:
        scene.test(weights, *words)
    finally:
        assert weights.read_bytes() == before


def _output_onto_link(scene: Scene, option: str) -> None:
    mine = scene.write("mine.npz", "precious")
    (scene.folder / "link").symlink_to(mine)
    try:
        _output(scene, option, str(scene.folder / "link"))
    finally:
        assert (scene.folder / "link").is_symlink()
        assert mine.read_text() == "precious"


def _metrics_of_a_run(scene: Scene) -> None:
    scene.run.mkdir()
    list_run_files(scene.run, ["metrics.json"])
    (scene.run / "metrics.json").write_text("precious")
    try:
        _output(scene, "--metrics", str(scene.run / "metrics.json"))
    finally:
        assert (scene.run / "metrics.json").read_text() == "precious"


def _no_permission(scene: Scene) -> None:
    def fail(*_: object, **__: object) -> None:  # the tests may run as root, whom no permission stops
        raise PermissionError(errno.EACCES, "Permission denied")

    scene.monkeypatch.setattr("engine.files._create", fail)
    _output(scene, "--save_features", str(scene.folder / "a.npz"))


def _report_by_several(scene: Scene) -> None:
    be_rank_1(scene.monkeypatch)
    _test_with_report(scene, "report")


def _report_on_full_disk(scene: Scene) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    scene.monkeypatch.setattr(Image.Image, "save", fail)
    _test_with_report(scene, "report")


def _read_only(scene: Scene) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    scene.monkeypatch.setattr(Path, "mkdir", fail)
    scene.train()


def _run_in_use(scene: Scene) -> None:
    scene.run.mkdir()
    (scene.run / "best.pth").write_text("precious")
    try:
        scene.train()
    finally:
        assert (scene.run / "best.pth").read_text() == "precious"


def _foreign_run_file(scene: Scene, name: str, *more: str) -> None:
    scene.run.mkdir()
    (scene.run / name).write_text("precious")
    try:
        scene.train(*more)
    finally:
        assert (scene.run / name).read_text() == "precious"


def _linked(scene: Scene, name: str) -> None:
    scene.run.mkdir()
    mine = scene.write("mine", "precious")
    (scene.run / name).symlink_to(mine)
    try:
        scene.train()
    finally:
        assert (scene.run / name).is_symlink()
        assert mine.read_text() == "precious"


def _locked(scene: Scene) -> None:
    scene.run.mkdir()
    with (scene.run / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        scene.train("--overwrite")


def _one_camera(scene: Scene) -> None:
    for path in scene.data.glob("test/*/*_cam2_*"):
        path.unlink()
    scene.train()


def _truncate_image(scene: Scene) -> None:
    path = scene.data / "train_171" / "NI" / NAME
    path.write_bytes(path.read_bytes()[:300])
    for other in path.parent.glob("*.jpg"):
        other.write_bytes(path.read_bytes())
    scene.train()


def _other_settings(scene: Scene) -> None:
    scene.run.mkdir()
    config = load_config(SMALL_MODEL, scene.arguments()[2:]).dump()
    save_checkpoint(scene.run / "last.pth", progress={}, config=config)
    scene.train("SOLVER.BASE_LR", "1e-4", "--resume")


def _damaged_checkpoint(scene: Scene) -> None:
    scene.run.mkdir()
    (scene.run / "last.pth").write_bytes(b"PK half")
    scene.train("--resume")


def _pipe(scene: Scene) -> None:
    os.mkfifo(scene.folder / "w.pth")
    scene.test(scene.folder / "w.pth")


def _other_images(scene: Scene) -> None:
    scene.train()
    for path in scene.data.glob(f"train_171/*/{NAME.partition('.')[0]}.*"):
        path.unlink()
    scene.train("--resume")


def _damaged_content(scene: Scene) -> None:
    scene.train()
    content = torch.load(scene.run / "last.pth", weights_only=True)
    content["optimizer"]["state"][0]["exp_avg"] = torch.zeros(3)
    torch.save(content, scene.run / "last.pth")
    scene.train("--resume")


def _resume_from_best(scene: Scene) -> None:
    save_checkpoint(scene.folder / "best.pth", model={})
    scene.train("--resume", str(scene.folder / "best.pth"))


def _new_camera(scene: Scene) -> None:
    for folder in scene.data.glob("test/*"):
        for path in folder.glob("*_cam2_*"):
            path.rename(path.with_name(path.name.replace("cam2", "cam7")))
    scene.train("MODEL.SIE_CAMERA", "True", "TEST.UNSEEN_CAMERA", "error")


def _overlapping_ids(scene: Scene) -> None:
    for path in scene.data.glob("test/*/000005_*"):
        path.rename(path.with_name(path.name.replace("000005", "000001")))
    scene.train()


def _empty_folder(scene: Scene) -> None:
    for path in scene.data.glob("test/*/*"):
        path.unlink()
    scene.train()


def _foreign_folder(scene: Scene) -> None:
    (scene.folder / "Synthetic").mkdir()
    (scene.folder / "Synthetic" / "mine.txt").write_text("mine")
    scene.train("DATASETS.NAMES", "Synthetic")


def _foreign_image(scene: Scene) -> None:
    folder = scene.data.rename(scene.folder / "Synthetic")
    (folder / "mine.jpg").write_text("precious")
    try:
        scene.train("DATASETS.NAMES", "Synthetic")
    finally:
        assert (folder / "mine.jpg").read_text() == "precious"


def _linked_set(scene: Scene) -> None:
    (scene.folder / "Synthetic").symlink_to(scene.data)
    scene.train("DATASETS.NAMES", "Synthetic")


def _not_an_image(scene: Scene) -> None:
    for path in scene.data.glob("test/TI/*"):
        path.write_text("no image")
    data = build_data(load_config(SMALL_MODEL, scene.arguments()[2:]))
    next(iter(data.test.loader))


def _foreign_file(scene: Scene) -> None:
    folder = draw_miniature("MSVR310", scene.folder) / "bounding_box_train" / "0002"
    for path in folder.glob("*/0002_s001_v1_*"):
        path.rename(path.with_name(path.name.replace("0002", "0003", 1)))
    scene.train("DATASETS.NAMES", "MSVR310")


def _no_identity(scene: Scene) -> None:
    (draw_miniature("WMVeID863", scene.folder) / "train" / "more").mkdir()
    scene.train("DATASETS.NAMES", "WMVeID863")


def _no_strip(scene: Scene) -> None:
    for path in draw_miniature("RGBNT100", scene.folder).glob("rgbir/bounding_box_train/*"):
        Image.new("RGB", (64, 20)).save(path)
    scene.train("DATASETS.NAMES", "RGBNT100")


def _several_processes(scene: Scene) -> None:
    build_data(load_config(SMALL_MODEL, scene.arguments()[2:]), num_processes=3)


def _no_cuda(scene: Scene) -> None:
    scene.monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    scene.train("MODEL.DEVICE", "cuda")


def _existing_output(scene: Scene) -> None:
    convert([str(scene.save(scene.small_state())), str(scene.write("out.pth", "x")), "--to", "demo"])


def _unpaired(scene: Scene) -> None:
    (scene.data / "train_171" / "TI" / NAME).unlink()
    scene.train()


def _unparsable(scene: Scene) -> None:
    for path in scene.data.glob(f"train_171/*/{NAME.partition('.')[0]}.*"):
        path.rename(path.with_name(f"person1{path.suffix}"))
    scene.train()


CASES: dict[str, Callable[[Scene], object]] = {
    "a key that does not exist": _config("MODEL.USE_SDTP", "True"),
    "a key in the wrong section": _config("MODEL.BASE_LR", "0.1"),
    "a key without its value": _config("MODEL.HEAD"),
    "a text for a number": _config("SOLVER.MAX_EPOCHS", "many"),
    "a fraction for a whole number": _config("SOLVER.MAX_EPOCHS", "1.5"),
    "a key and its value in one word": _config("MODEL.HDM=True"),
    "a section in place of a key": _config("MODEL", "1"),
    "a text for a switch": _config("MODEL.HDM", "maybe"),
    "a number for a list": _config("INPUT.SIZE_TRAIN", "256"),
    "an unknown choice": _config("SOLVER.OPTIMIZER_NAME", "Lion"),
    "ATMoE without HDM": _config("MODEL.ATM", "True"),
    "a sparse ratio of 0": _config("MODEL.SDTPS_SPARSE_RATIO", "0"),
    "Gumbel without SDTPS": _config("MODEL.SDTPS_USE_GUMBEL", "True", "MODEL.USE_SDTPS", "False"),
    "slimming behind a block that does not exist": _config("MODEL.SLIM_LAYERS", "[2, 9]"),
    "blocks in the wrong order": _config("MODEL.SLIM_LAYERS", "[3, 2]"),
    "an image smaller than a patch": _config("INPUT.SIZE_TRAIN", "[4, 4]", "INPUT.SIZE_TEST", "[4, 4]"),
    "a stride larger than a patch": _config("MODEL.STRIDE_SIZE", "[16, 16]"),
    "an image of too many pixels": _config(
        "INPUT.SIZE_TRAIN", "[100000, 100000]", "INPUT.SIZE_TEST", "[100000, 100000]"
    ),
    "an image of too many patches": _config(
        "INPUT.SIZE_TRAIN", "[4096, 64]", "INPUT.SIZE_TEST", "[4096, 64]", "MODEL.STRIDE_SIZE", "[1, 1]"
    ),
    "a padding as large as the image": _config("INPUT.PADDING", "64"),
    "a million processes that load images": _config("DATALOADER.NUM_WORKERS", "1000000"),
    "a batch beyond any memory": _config("TEST.IMS_PER_BATCH", "1000000"),
    "a batch that is no multiple of NUM_INSTANCE": _config("SOLVER.IMS_PER_BATCH", "5"),
    "a warm-up that never ends": _config("SOLVER.WARMUP_ITERS", "9"),
    "a learning rate at which the weights overflow": lambda scene: scene.train(
        "SOLVER.IMS_PER_BATCH", "8", "SOLVER.BASE_LR", "1e43"
    ),
    "a part that is not implemented": _config("MODEL.PROMPT", "True"),
    "an unknown backbone": _config(
        "MODEL.TRANSFORMER_TYPE", "vit_tiny_stem_patch9", "MODEL.STRIDE_SIZE", "[8, 8]"
    ),
    "heads that do not divide the width": _config(
        "MODEL.HDM", "True", "MODEL.ATM", "True", "MODEL.HEAD", "5"
    ),
    "views where there are none": _config("MODEL.SIE_VIEW", "True"),
    "no CUDA device": _no_cuda,
    "no configuration file": lambda scene: load_config(scene.folder / "nowhere.yml"),
    "a configuration that is not YAML": lambda scene: load_config(scene.write("a.yml", "MODEL: [")),
    "a section that a file has twice": lambda scene: load_config(
        scene.write("a.yml", "MODEL:\n  HEAD: 2\nSOLVER:\n  SEED: 1\nMODEL:\n  HDM: True\n")
    ),
    "a value that contains itself": lambda scene: load_config(scene.write("a.yml", "MODEL: &a\n  HEAD: *a")),
    "aliases that multiply": lambda scene: load_config(scene.write("a.yml", BOMB)),
    "a configuration that is nested without end": lambda scene: load_config(scene.write("a.yml", "[" * 9999)),
    "a configuration of a megabyte": lambda scene: load_config(scene.write("a.yml", "#" * 1_000_000)),
    "a folder in place of a configuration": lambda scene: load_config(scene.folder),
    "a configuration without sections": lambda scene: load_config(scene.write("a.yml", "- 1")),
    "no data set": _config("DATASETS.ROOT_DIR", "/nowhere"),
    "an unknown data set": _config("DATASETS.NAMES", "Market1501"),
    "an image without its partner": _unpaired,
    "a file name that cannot be read": _unparsable,
    "an empty folder": _empty_folder,
    "an identity in training and test": _overlapping_ids,
    "a file in the folder of another identity": _foreign_file,
    "a folder that is no identity": _no_identity,
    "a strip that is none": _no_strip,
    "too few identities for a batch": _config("SOLVER.IMS_PER_BATCH", "64"),
    "one identity to validate on": _config("DATASETS.VAL_IDS", "1"),
    "more identities held out than can be spared": _config("DATASETS.VAL_IDS", "3"),
    "a truncated training image": _truncate_image,
    "a test file that is not an image": _not_an_image,
    "somebody else's folder in the place of the drawn set": _foreign_folder,
    "somebody else's file in a set that must be drawn anew": _foreign_image,
    "a link in the place of the drawn set": _linked_set,
    "a test camera without training images": _new_camera,
    "a test set with one camera": _one_camera,
    "a batch that the processes cannot share": _several_processes,
    "what torchrun has left in the environment": _left_in_the_environment,
    "no weights to test": lambda scene: scene.test(""),
    "a weight file that does not exist": lambda scene: scene.test("nowhere.pth"),
    "pre-trained weights that do not exist": _config("MODEL.PRETRAIN_PATH_T", "pretrained/ViT-B-16.pt"),
    "weights without a configuration": lambda scene: test_entry.main(
        ["TEST.WEIGHT", str(scene.save(scene.small_state()))]
    ),
    "an empty weight file": lambda scene: scene.test(scene.write("w.pth", "")),
    "a web page in place of weights": lambda scene: scene.test(scene.write("w.pth", "<html>")),
    "a folder in place of weights": lambda scene: scene.test(scene.folder),
    "a pipe in place of weights": _pipe,
    "a pointer of Git LFS in place of weights": lambda scene: scene.test(
        scene.write("w.pth", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    ),
    "a truncated weight file": lambda scene: scene.test(
        scene.write("w.pth", scene.save(scene.small_state()).read_bytes()[:999])
    ),
    "a weight file that could run code": lambda scene: scene.test(scene.save({"state_dict": _Code()})),
    "weights of an unknown architecture": lambda scene: scene.test(scene.save({"layer1.w": torch.ones(2)})),
    "a backbone in place of a whole model": lambda scene: scene.test(
        scene.save({"patch_embed.proj.weight": torch.ones(2)})
    ),
    "weights of another width": lambda scene: scene.test(
        scene.save({**scene.small_state(), "backbone.vit.cls_token": torch.ones(1, 1, 96)})
    ),
    "weights of another kind of number": lambda scene: scene.test(
        scene.save({**scene.small_state(), "backbone.vit.cls_token": torch.ones(1, 1, 64, dtype=torch.int8)})
    ),
    "weights with entries missing": lambda scene: scene.test(
        scene.save({n: t for n, t in scene.small_state().items() if "sdtps" not in n})
    ),
    "weights with entries too many": lambda scene: scene.test(
        scene.save({**scene.small_state(), "backbone.vit.extra": torch.ones(2)})
    ),
    "two ways to say what is missing": lambda scene: scene.test(
        scene.save(scene.small_state()), "--missing", "all", "TEST.MISS", "r"
    ),
    "a report in the place of another folder": _foreign_report,
    "a report in the place of a link": lambda scene: _output_onto_link(scene, "--report"),
    "a report below a file": lambda scene: _output(
        scene, "--report", str(scene.write("file", "precious") / "report")
    ),
    "a report by several processes": _report_by_several,
    "a disk that is full while a report is written": _report_on_full_disk,
    "numbers in the place of weights": lambda scene: _output(
        scene, "--metrics", str(scene.folder / "weights.pth")
    ),
    "numbers in the place of those of a run": _metrics_of_a_run,
    "numbers in a folder that does not exist": lambda scene: _output(
        scene, "--metrics", str(scene.folder / "nowhere" / "a.json")
    ),
    "numbers into a device": lambda scene: _output(scene, "--metrics", "/dev/null"),
    "features in the place of a link": lambda scene: _output_onto_link(scene, "--save_features"),
    "features in the place of a folder": lambda scene: _output(scene, "--save_features", str(scene.folder)),
    "features and numbers in one file": lambda scene: _output(
        scene, "--save_features", str(scene.folder / "both"), "--metrics", str(scene.folder / "both")
    ),
    "features in a folder without permission": _no_permission,
    "a conversion onto an existing file": _existing_output,
    "a run folder that holds another run": _run_in_use,
    "a run folder that a running process uses": _locked,
    "overwriting a run that kept no list of its files": lambda scene: _foreign_run_file(
        scene, "best.pth", "--overwrite"
    ),
    "somebody else's configuration in the run folder": lambda scene: _foreign_run_file(scene, "config.yml"),
    "a link in the place of the log": lambda scene: _linked(scene, "log.txt"),
    "a TensorBoard folder that lies elsewhere": lambda scene: _linked(scene, "tensorboard"),
    "a run folder below a file": lambda scene: scene.train(output=f"{scene.write('file', '').name}/run"),
    "a run folder that is read-only": _read_only,
    "a disk that is full": _full_disk,
    "resume and overwrite at once": _config("--resume", "--overwrite"),
    "resuming with other settings": _other_settings,
    "resuming on other images": _other_images,
    "resuming from a file that does not exist": lambda scene: scene.train("--resume", "nowhere.pth"),
    "resuming from a damaged checkpoint": _damaged_checkpoint,
    "resuming from a checkpoint with damaged content": _damaged_content,
    "resuming from best.pth": _resume_from_best,
}


def rows_of_the_page() -> dict[str, str]:
    """What the table says: input -> message, in which … stands for anything."""
    rows = re.findall(r"^\| ([^|]+?) \| `` (.+?) `` \|$", PAGE.read_text(), flags=re.MULTILINE)
    return dict(rows)


def test_the_table_and_the_tests_have_the_same_rows() -> None:
    assert list(rows_of_the_page()) == list(CASES)
    assert len(CASES) >= 40


@pytest.mark.parametrize("case", CASES)
def test_the_input_gets_its_message(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        CASES[case](scene)
    message = str(caught.value)
    pattern = ".*".join(re.escape(part) for part in rows_of_the_page()[case].split("…"))
    assert re.fullmatch(pattern, message, flags=re.DOTALL), message
    assert not list(tmp_path.rglob("*.tmp"))
    assert not (tmp_path / "code_was_run").exists()
