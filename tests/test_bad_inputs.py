"""Every bad input with the sentence it gets. docs/reliability.md shows one for each class."""

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
from errors import UserError
from miniatures import draw_miniature
from modeling.make_model import make_model
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
    scene.monkeypatch.setattr(train_entry, "make_model", lambda *_, **__: pytest.fail("too late"))
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
    (scene.run / "config.yml").write_text(config)
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


CASES: dict[str, tuple[Callable[[Scene], object], str]] = {
    "a key that does not exist": (
        _config("MODEL.USE_SDTP", "True"),
        "command line: unknown key 'MODEL.USE_SDTP'; did you mean MODEL.USE_SDTPS?",
    ),
    "a key in the wrong section": (
        _config("MODEL.BASE_LR", "0.1"),
        "command line: unknown key 'MODEL.BASE_LR'; did you mean SOLVER.BASE_LR or SOLVER.BACKBONE_LR?",
    ),
    "a key of a method that no script has registered": (
        _config("MODEL.CROSS_HEADS", "2"),
        "command line: unknown key 'MODEL.CROSS_HEADS'; did you mean MODEL.HEAD, or does a script of yours "
        "register it (docs/extending.md)?",
    ),
    "a key without its value": (
        _config("MODEL.HEAD"),
        "the command line needs KEY VALUE pairs, but 'MODEL.HEAD' stands alone",
    ),
    "a text for a number": (
        _config("SOLVER.MAX_EPOCHS", "many"),
        "command line: SOLVER.MAX_EPOCHS takes a whole number such as 50, not 'many'",
    ),
    "a fraction for a whole number": (
        _config("SOLVER.MAX_EPOCHS", "1.5"),
        "command line: SOLVER.MAX_EPOCHS takes a whole number such as 50, not 1.5",
    ),
    "a key and its value in one word": (
        _config("MODEL.HDM=True"),
        "write MODEL.HDM True, not MODEL.HDM=True: a setting is two words",
    ),
    "a section in place of a key": (
        _config("MODEL", "1"),
        "command line: MODEL is a section; name one of its keys, such as MODEL.DEVICE",
    ),
    "a text for a switch": (
        _config("MODEL.HDM", "maybe"),
        "command line: MODEL.HDM takes True or False, not 'maybe'",
    ),
    "a number for a list": (
        _config("INPUT.SIZE_TRAIN", "256"),
        "command line: INPUT.SIZE_TRAIN takes a list of numbers such as [256, 128], not 256",
    ),
    "an unknown choice": (
        _config("SOLVER.OPTIMIZER_NAME", "Lion"),
        "SOLVER.OPTIMIZER_NAME must be one of Adam, AdamW, SGD, not 'Lion'",
    ),
    "ATMoE without HDM": (
        _config("MODEL.ATM", "True"),
        "MODEL.ATM weighs the features of MODEL.HDM; turn MODEL.HDM on or MODEL.ATM off",
    ),
    "a sparse ratio of 0": (
        _config("MODEL.SDTPS_SPARSE_RATIO", "0"),
        "MODEL.SDTPS_SPARSE_RATIO must be above 0 and at most 1, not 0.0",
    ),
    "Gumbel without SDTPS": (
        _config("MODEL.SDTPS_USE_GUMBEL", "True", "MODEL.USE_SDTPS", "False"),
        "MODEL.SDTPS_USE_GUMBEL needs MODEL.USE_SDTPS; turn both on, or both off",
    ),
    "slimming behind a block that does not exist": (
        _config("MODEL.SLIM_LAYERS", "[2, 9]"),
        "MODEL.SLIM_LAYERS [2, 9] names blocks that do not exist; this backbone has blocks 1 to 4",
    ),
    "blocks in the wrong order": (
        _config("MODEL.SLIM_LAYERS", "[3, 2]"),
        "MODEL.SLIM_LAYERS must be ascending numbers of blocks, counted from 1, such as [3, 6, 9]; "
        "0 is before the first, not [3, 2]",
    ),
    "an image smaller than a patch": (
        _config("INPUT.SIZE_TRAIN", "[4, 4]", "INPUT.SIZE_TEST", "[4, 4]"),
        "INPUT.SIZE_TRAIN [4, 4] is smaller than one patch of 8 pixels; make INPUT.SIZE_TRAIN and "
        "INPUT.SIZE_TEST larger",
    ),
    "a stride larger than a patch": (
        _config("MODEL.STRIDE_SIZE", "[16, 16]"),
        "MODEL.STRIDE_SIZE [16, 16] is larger than the patch of 8 pixels and would skip pixels; [8, "
        "8] is the largest",
    ),
    "an image of too many pixels": (
        _config("INPUT.SIZE_TRAIN", "[100000, 100000]", "INPUT.SIZE_TEST", "[100000, 100000]"),
        "INPUT.SIZE_TRAIN must be two whole numbers between 1 and 4096, not [100000, 100000]",
    ),
    "an image of too many patches": (
        _config(
            "INPUT.SIZE_TRAIN", "[4096, 64]", "INPUT.SIZE_TEST", "[4096, 64]", "MODEL.STRIDE_SIZE", "[1, 1]"
        ),
        "INPUT.SIZE_TRAIN [4096, 64] with MODEL.STRIDE_SIZE [1, 1] makes 233073 patches; at most "
        "10000 can be used, so make the images smaller or the stride larger",
    ),
    "a padding as large as the image": (
        _config("INPUT.PADDING", "64"),
        "INPUT.PADDING (64) must be smaller than both sides of INPUT.SIZE_TRAIN [128, 64], or a crop "
        "could miss the image",
    ),
    "a million processes that load images": (
        _config("DATALOADER.NUM_WORKERS", "1000000"),
        "DATALOADER.NUM_WORKERS must be between 0 and 256, not 1000000",
    ),
    "a batch beyond any memory": (
        _config("TEST.IMS_PER_BATCH", "1000000"),
        "TEST.IMS_PER_BATCH must be between 1 and 4096, not 1000000",
    ),
    "a batch that is no multiple of NUM_INSTANCE": (
        _config("SOLVER.IMS_PER_BATCH", "5"),
        "SOLVER.IMS_PER_BATCH (5) must be a multiple of DATALOADER.NUM_INSTANCE (2), and at least "
        "twice that, since a batch holds whole identities and two or more of them",
    ),
    "a warm-up that never ends": (
        _config("SOLVER.WARMUP_ITERS", "9"),
        "SOLVER.WARMUP_ITERS (9 epochs) must be below SOLVER.MAX_EPOCHS (1); lower it, or set it to "
        "0 for no warm-up",
    ),
    "a learning rate at which the weights overflow": (
        lambda scene: scene.train("SOLVER.IMS_PER_BATCH", "8", "SOLVER.BASE_LR", "1e43"),
        "the weights are not finite (… tensors, first …) after step 1; lower SOLVER.BASE_LR, "
        "or set SOLVER.CLIP_GRAD; nothing has been saved yet",
    ),
    "a part that is not implemented": (
        _config("MODEL.PROMPT", "True"),
        "MODEL.PROMPT True cannot be used: prompts are not implemented; MODEL.TUNE adapter or lora learns as "
        "little; set it to False",
    ),
    "an unknown backbone": (
        _config("MODEL.TRANSFORMER_TYPE", "vit_tiny_stem_patch9", "MODEL.STRIDE_SIZE", "[8, 8]"),
        "MODEL.TRANSFORMER_TYPE 'vit_tiny_stem_patch9' is unknown; nearest are vit_tiny_stem_patch8, …",
    ),
    "heads that do not divide the width": (
        _config("MODEL.HDM", "True", "MODEL.ATM", "True", "MODEL.HEAD", "5"),
        "MODEL.HEAD (5) must divide the token width of the backbone (64)",
    ),
    "views where there are none": (
        _config("MODEL.SIE_VIEW", "True"),
        "MODEL.SIE_VIEW is on, but RGBNT201 has one scene only; set it to False",
    ),
    "no CUDA device": (_no_cuda, "MODEL.DEVICE is cuda, but torch finds no CUDA device; use auto or cpu"),
    "no configuration file": (
        lambda scene: load_config(scene.folder / "nowhere.yml"),
        "configuration file …/nowhere.yml does not exist",
    ),
    "a configuration that is not YAML": (
        lambda scene: load_config(scene.write("a.yml", "MODEL: [")),
        "configuration file …/a.yml is not valid YAML: …",
    ),
    "a section that a file has twice": (
        lambda scene: load_config(
            scene.write("a.yml", "MODEL:\n  HEAD: 2\nSOLVER:\n  SEED: 1\nMODEL:\n  HDM: True\n")
        ),
        "configuration file …/a.yml has 'MODEL' twice, in lines 1 and 5; make it one",
    ),
    "a value that contains itself": (
        lambda scene: load_config(scene.write("a.yml", "MODEL: &a\n  HEAD: *a")),
        "configuration file …/a.yml has a value that contains itself (line 1); write it without the alias",
    ),
    "aliases that multiply": (
        lambda scene: load_config(scene.write("a.yml", BOMB)),
        "configuration file …/a.yml has more than 10000 values with those of its aliases; write fewer",
    ),
    "a configuration that is nested without end": (
        lambda scene: load_config(scene.write("a.yml", "[" * 9999)),
        "configuration file …/a.yml is nested too deeply; a configuration has two levels",
    ),
    "a configuration of a megabyte": (
        lambda scene: load_config(scene.write("a.yml", "#" * 1_000_000)),
        "configuration file …/a.yml has more than 100000 bytes, so it is not one of ours; name another file",
    ),
    "a folder in place of a configuration": (
        lambda scene: load_config(scene.folder),
        "configuration file … cannot be read: Is a directory",
    ),
    "a configuration without sections": (
        lambda scene: load_config(scene.write("a.yml", "- 1")),
        "configuration file …/a.yml must hold sections such as MODEL: and SOLVER:",
    ),
    "no data set": (
        _config("DATASETS.ROOT_DIR", "/nowhere"),
        "there is no folder /nowhere/RGBNT201: put the RGBNT201 data set there, or set "
        "DATASETS.ROOT_DIR to the folder that holds it",
    ),
    "an unknown data set": (
        _config("DATASETS.NAMES", "Market1501"),
        "unknown data set 'Market1501' in DATASETS.NAMES; choose from CSV, MSVR310, RGBNT100, "
        "RGBNT201, Synthetic, SyntheticAnywhere, SyntheticHard, SyntheticTrunk, SyntheticV1, WMVeID863",
    ),
    "an image without its partner": (_unpaired, "1 problem with the data set in …/RGBNT201:…"),
    "a file name that cannot be read": (_unparsable, "1 problem with the data set in …/RGBNT201:…"),
    "an empty folder": (_empty_folder, "4 problems with the data set in …/RGBNT201:…"),
    "an identity in training and test": (_overlapping_ids, "1 problem with the data set in …/RGBNT201:…"),
    "a file in the folder of another identity": (
        _foreign_file,
        "1 problem with the data set in …/MSVR310:…lies in the folder of identity 0002…",
    ),
    "a folder that is no identity": (
        _no_identity,
        "1 problem with the data set in …/WMVEID863:…train/more is not the folder of an identity, "
        "such as 0001…",
    ),
    "a strip that is none": (
        _no_strip,
        "cannot cut …/RGBNT100/rgbir/bounding_box_train/….jpg into RGB, NI, TI images (its width of "
        "64 pixels is no multiple of 3): restore the file",
    ),
    "too few identities for a batch": (
        _config("SOLVER.IMS_PER_BATCH", "64"),
        "SOLVER.IMS_PER_BATCH 64 with DATALOADER.NUM_INSTANCE 2 needs 32 training identities, but "
        "there are 4; set SOLVER.IMS_PER_BATCH to 8",
    ),
    "one identity to validate on": (
        _config("DATASETS.VAL_IDS", "1"),
        "DATASETS.VAL_IDS must be 0, or at least 2 (one identity alone is always found), not 1",
    ),
    "more identities held out than can be spared": (
        _config("DATASETS.VAL_IDS", "3"),
        "DATASETS.VAL_IDS is 3, but at most 2 identities can be held out: of 4 training identities, "
        "4 can be found again under the protocol 'camera', and 2 must be left for a batch "
        "(SOLVER.IMS_PER_BATCH / DATALOADER.NUM_INSTANCE)",
    ),
    "a truncated training image": (
        _truncate_image,
        "cannot read the NI image …/RGBNT201/train_171/NI/….jpg (…): restore the file, or name another",
    ),
    "a test file that is not an image": (
        _not_an_image,
        "cannot read the TI image …/RGBNT201/test/TI/….jpg (it is no JPEG or PNG image): restore the file, "
        "or name another",
    ),
    "somebody else's folder in the place of the drawn set": (
        _foreign_folder,
        "…/Synthetic has no stamp.json, so it was not drawn by this project and is left alone; move "
        "it away or choose another DATASETS.ROOT_DIR",
    ),
    "somebody else's file in a set that must be drawn anew": (
        _foreign_image,
        "the synthetic data set in …/Synthetic must be drawn anew, but …/Synthetic/mine.jpg was not "
        "drawn by this project and is left alone; move it away or choose another DATASETS.ROOT_DIR",
    ),
    "a link in the place of the drawn set": (
        _linked_set,
        "…/Synthetic is a symbolic link to something other than this synthetic data set and is left "
        "alone; move it away or choose another DATASETS.ROOT_DIR",
    ),
    "a test camera without training images": (
        _new_camera,
        "there are no training images of the test cameras 6 (counted from 0); set TEST.UNSEEN_CAMERA "
        "to mean or zero to give them an embedding",
    ),
    "a test set with one camera": (
        _one_camera,
        "…/RGBNT201: none of the 2 queries can be scored: the gallery has no other image of the same "
        "identity; add some from other cameras",
    ),
    "a batch that the processes cannot share": (
        _several_processes,
        "SOLVER.IMS_PER_BATCH (4) must be a multiple of the number of processes (3), which share a "
        "batch; change it, or torchrun's --nproc_per_node",
    ),
    "what torchrun has left in the environment": (
        _left_in_the_environment,
        "wrong environment for several processes: RANK is set, but WORLD_SIZE is not; start them "
        "with torchrun, or unset RANK, WORLD_SIZE and LOCAL_RANK to run one",
    ),
    "no weights to test": (
        lambda scene: scene.test(""),
        "TEST.WEIGHT is empty; name the checkpoint to evaluate, TEST.WEIGHT runs/…/best.pth",
    ),
    "a weight file that does not exist": (
        lambda scene: scene.test("nowhere.pth"),
        "TEST.WEIGHT: weight file nowhere.pth does not exist; name a checkpoint of a run, such as "
        "runs/…/best.pth",
    ),
    "pre-trained weights that do not exist": (
        _config("MODEL.PRETRAIN_PATH_T", "pretrained/ViT-B-16.pt"),
        "MODEL.PRETRAIN_PATH_T: weight file pretrained/ViT-B-16.pt does not exist; put the file "
        "there or name another; for ViT-B-16 it is CLIP's ViT-B-16.pt from OpenAI's release (its "
        "address is in docs/data.md)",
    ),
    "a folder in place of pre-trained weights": (
        lambda scene: scene.train("MODEL.PRETRAIN_PATH_T", str(scene.folder), "DATASETS.ROOT_DIR", "nowhere"),
        "MODEL.PRETRAIN_PATH_T: … is a folder; name the file in it, such as …/model.safetensors",
    ),
    "weights without a configuration": (
        lambda scene: test_entry.main(["TEST.WEIGHT", str(scene.save(scene.small_state()))]),
        "…/weights.pth holds no configuration (nor do DeMo's checkpoints and safetensors); add "
        "--config_file with the settings that it was trained with",
    ),
    "an empty weight file": (
        lambda scene: scene.test(scene.write("w.pth", "")),
        "weight file …/w.pth is empty; fetch it again",
    ),
    "a web page in place of weights": (
        lambda scene: scene.test(scene.write("w.pth", "<html>")),
        "weight file …/w.pth is a web page, not weights; the download went wrong",
    ),
    "a folder in place of weights": (
        lambda scene: scene.test(scene.folder),
        "weight file … is a folder; name the file in it",
    ),
    "a pipe in place of weights": (
        _pipe,
        "weight file …/w.pth is a pipe or a device, not a file; name the file itself",
    ),
    "a pointer of Git LFS in place of weights": (
        lambda scene: scene.test(
            scene.write("w.pth", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
        ),
        "weight file …/w.pth is a pointer of Git LFS, not the file itself; run `git lfs pull` where "
        "it was cloned",
    ),
    "a truncated weight file": (
        lambda scene: scene.test(scene.write("w.pth", scene.save(scene.small_state()).read_bytes()[:999])),
        "weight file …/w.pth is truncated or damaged; fetch it again",
    ),
    "a weight file that could run code": (
        lambda scene: scene.test(scene.save({"state_dict": _Code()})),
        "weight file …/weights.pth holds more than tensors and could run code when opened, so it is "
        "refused; if you trust it, open it yourself and save only its state dict with torch.save",
    ),
    "weights of an unknown architecture": (
        lambda scene: scene.test(scene.save({"layer1.w": torch.ones(2)})),
        "…/weights.pth holds no weights that are known here: CLIP, DINOv2, DINOv3, EVA-02, a timm ViT, DeMo, "
        "EDITOR, Signal or ours; it starts with layer1.w",
    ),
    "a backbone in place of a whole model": (
        lambda scene: scene.test(scene.save({"patch_embed.proj.weight": torch.ones(2)})),
        "…/weights.pth holds a backbone, not a whole model; give it as MODEL.PRETRAIN_PATH_T to train_net.py",
    ),
    "weights of another width": (
        lambda scene: scene.test(
            scene.save({**scene.small_state(), "backbone.vit.cls_token": torch.ones(1, 1, 96)})
        ),
        "…/weights.pth does not fit this configuration: backbone.vit.cls_token has shape (1, 1, 96), "
        "the model needs (1, 1, 64); use the configuration that it was trained with",
    ),
    "weights of another kind of number": (
        lambda scene: scene.test(
            scene.save(
                {**scene.small_state(), "backbone.vit.cls_token": torch.ones(1, 1, 64, dtype=torch.int8)}
            )
        ),
        "…/weights.pth does not fit this configuration: backbone.vit.cls_token holds int8 values, "
        "the model needs float32",
    ),
    "weights with entries missing": (
        lambda scene: scene.test(
            scene.save({n: t for n, t in scene.small_state().items() if "sdtps" not in n})
        ),
        "…/weights.pth does not fit this configuration: entries missing: 38 "
        "(branches.sdtps.select.selectors.0.score_predictor.0.weight, … and 35 more); use the "
        "configuration it was trained with, or add --allow_partial to load what fits",
    ),
    "weights with entries too many": (
        lambda scene: scene.test(scene.save({**scene.small_state(), "backbone.vit.extra": torch.ones(2)})),
        "…/weights.pth does not fit this configuration: entries unexpected: 1 (backbone.vit.extra); "
        "use the configuration it was trained with, or add --allow_partial to load what fits",
    ),
    "two ways to say what is missing": (
        lambda scene: scene.test(scene.save(scene.small_state()), "--missing", "all", "TEST.MISS", "r"),
        "TEST.MISS r and --missing all contradict each other; give one of them",
    ),
    "a report in the place of another folder": (
        _foreign_report,
        "…/thesis exists and is not a report with a list of its files (data/files.json); name "
        "another folder for --report, or remove it",
    ),
    "a report in the place of a link": (
        lambda scene: _output_onto_link(scene, "--report"),
        "…/link is a symbolic link, which is left alone; name the folder itself for --report",
    ),
    "a report below a file": (
        lambda scene: _output(scene, "--report", str(scene.write("file", "precious") / "report")),
        "the report …/file/report cannot be written: Not a directory",
    ),
    "a report by several processes": (
        _report_by_several,
        "--report needs all test triples in one process; run test_net.py without torchrun",
    ),
    "a disk that is full while a report is written": (
        _report_on_full_disk,
        "the report …/report cannot be written: No space left on device",
    ),
    "numbers in the place of weights": (
        lambda scene: _output(scene, "--metrics", str(scene.folder / "weights.pth")),
        "…/weights.pth exists and is not a .json file; name another output file or remove it",
    ),
    "numbers in the place of those of a run": (
        _metrics_of_a_run,
        "…/run/metrics.json belongs to the run in that folder; name another output file",
    ),
    "numbers in a folder that does not exist": (
        lambda scene: _output(scene, "--metrics", str(scene.folder / "nowhere" / "a.json")),
        "…/nowhere/a.json cannot be written: there is no folder …/nowhere",
    ),
    "numbers into a device": (
        lambda scene: _output(scene, "--metrics", "/dev/null"),
        "/dev/null cannot be written: it is not a regular file; name another one",
    ),
    "features in the place of a link": (
        lambda scene: _output_onto_link(scene, "--save_features"),
        "…/link cannot be written: it is a symbolic link, which is left alone; name the file itself, "
        "or remove the link",
    ),
    "features in the place of a folder": (
        lambda scene: _output(scene, "--save_features", str(scene.folder)),
        "… cannot be written: it is a folder; name a file in it",
    ),
    "features and numbers in one file": (
        lambda scene: _output(
            scene, "--save_features", str(scene.folder / "both"), "--metrics", str(scene.folder / "both")
        ),
        "…/both is named for two outputs; name two files",
    ),
    "features in a folder without permission": (
        _no_permission,
        "…/a.npz cannot be written: Permission denied",
    ),
    "a conversion onto an existing file": (
        _existing_output,
        "…/out.pth exists; name another output file or remove it",
    ),
    "a run folder that holds another run": (
        _run_in_use,
        "…/run already holds a run (best.pth); add --resume to continue it, --overwrite to replace "
        "it, or choose another OUTPUT_DIR",
    ),
    "a run folder that a running process uses": (
        _locked,
        "…/run is in use by another run; wait for it, or choose another OUTPUT_DIR",
    ),
    "overwriting a run that kept no list of its files": (
        lambda scene: _foreign_run_file(scene, "best.pth", "--overwrite"),
        "…/run/best.pth is not in .run_files.json, the list of what the run in this folder wrote, "
        "and is left alone; move it away or choose another OUTPUT_DIR",
    ),
    "somebody else's configuration in the run folder": (
        lambda scene: _foreign_run_file(scene, "config.yml"),
        "…/run/config.yml is not in .run_files.json, the list of what the run in this folder wrote, "
        "and is left alone; move it away or choose another OUTPUT_DIR",
    ),
    "a link in the place of the log": (
        lambda scene: _linked(scene, "log.txt"),
        "…/run/log.txt cannot be written: it is a symbolic link, which is left alone; name the file "
        "itself, or remove the link",
    ),
    "a TensorBoard folder that lies elsewhere": (
        lambda scene: _linked(scene, "tensorboard"),
        "…/run/tensorboard is a file or a link, not a folder; remove it or choose another OUTPUT_DIR",
    ),
    "a run folder below a file": (
        lambda scene: scene.train(output=f"{scene.write('file', '').name}/run"),
        "the run folder …/file/run cannot be written: Not a directory",
    ),
    "a run folder that is read-only": (
        _read_only,
        "the run folder …/run cannot be written: Read-only file system",
    ),
    "a disk that is full": (
        _full_disk,
        "…/run/.run_files.json cannot be written: No space left on device; its earlier version is untouched",
    ),
    "resume and overwrite at once": (
        _config("--resume", "--overwrite"),
        "--resume and --overwrite contradict each other; give one of them",
    ),
    "resuming with other settings": (
        _other_settings,
        "the run was started with other settings that alter its result (SOLVER.BASE_LR); resume it "
        "with the same ones (--config_file …/run/config.yml), or add --force",
    ),
    "resuming on other images": (
        _other_images,
        "the training images are not those that the run was started with (files, sizes, identities, "
        "cameras or scenes differ); restore them, or add --force",
    ),
    "resuming from a file that does not exist": (
        lambda scene: scene.train("--resume", "nowhere.pth"),
        "--resume: checkpoint nowhere.pth does not exist; name last.pth of a run, or leave the name "
        "out for that of OUTPUT_DIR",
    ),
    "resuming from a damaged checkpoint": (
        _damaged_checkpoint,
        "checkpoint …/run/last.pth cannot be read; it is damaged or not a checkpoint",
    ),
    "resuming from a checkpoint with damaged content": (
        _damaged_content,
        "the checkpoint is damaged, or does not fit this configuration: optimizer.state.0.exp_avg has "
        "shape (3,), not …; resume with the settings that the run was started with, or from another "
        "checkpoint",
    ),
    "resuming from best.pth": (
        _resume_from_best,
        "…/best.pth is not a checkpoint that training can resume from; use last.pth of a run",
    ),
}
"""Every bad input: what is done, and the message; … stands for a path or a list."""


def test_the_messages_of_the_page_are_those_of_cases() -> None:
    shown = re.findall(r"^\| [^|]+ \| `` (.+?) `` \|$", PAGE.read_text(), flags=re.MULTILINE)
    assert len(shown) >= 7
    assert set(shown) <= {message for _, message in CASES.values()}
    assert len(CASES) >= 100


@pytest.mark.parametrize("case", CASES)
def test_the_input_gets_its_message(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)
    provoke, wanted = CASES[case]
    with pytest.raises(UserError) as caught:
        provoke(scene)
    message = str(caught.value)
    pattern = ".*".join(re.escape(part) for part in wanted.split("…"))
    assert re.fullmatch(pattern, message, flags=re.DOTALL), message
    assert not list(tmp_path.rglob("*.tmp"))
    assert not (tmp_path / "code_was_run").exists()
