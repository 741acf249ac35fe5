from pathlib import Path

import pytest
import yaml

from config import ConfigError, check_resumable, get_cfg, load_config, stored_config, warn_about_unused
from config.schema import flatten

ROOT = Path(__file__).parent.parent.parent
CONFIG_FILES = sorted((ROOT / "configs").rglob("*.yml"))


def test_get_cfg_returns_a_copy() -> None:
    first = get_cfg()
    first.MODEL.HEAD = 99
    assert get_cfg().MODEL.HEAD == 4


def test_command_line_overrides_the_file_which_overrides_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "some.yml"
    file.write_text("MODEL:\n  HEAD: 2\nSOLVER:\n  BASE_LR: 5e-6\n  SEED: 7\n")
    cfg = load_config(file, ["SOLVER.SEED", "8"])
    assert (cfg.MODEL.HEAD, cfg.SOLVER.BASE_LR, cfg.SOLVER.SEED, cfg.SOLVER.MAX_EPOCHS) == (2, 5e-6, 8, 50)
    assert cfg.is_frozen()


def test_saved_configuration_loads_to_the_same_settings(tmp_path: Path) -> None:
    cfg = load_config(ROOT / "configs/Synthetic/DeMo_SDTPS.yml", ["MODEL.SDTPS_USE_GUMBEL", "True"])
    (tmp_path / "config.yml").write_text(cfg.dump())
    assert load_config(tmp_path / "config.yml") == cfg


@pytest.mark.parametrize("file", CONFIG_FILES, ids=lambda file: str(file.relative_to(ROOT / "configs")))
def test_shipped_files_load_and_hold_only_differences(file: Path) -> None:
    load_config(file)
    content = yaml.safe_load(file.read_text())
    base = content.pop("_BASE_", None)
    before = dict(flatten(get_cfg() if base is None else load_config(file.parent / base)))
    repeated = [key for key, value in flatten(content) if before[key] == value]
    assert not repeated, f"{file} repeats what it builds on: {repeated}"


def test_shipped_variants() -> None:
    parts = ("GLOBAL_LOCAL", "HDM", "ATM", "USE_SDTPS", "SDTPS_USE_GUMBEL")
    expected = {
        "Baseline": (False, False, False, False, False),
        "DeMo": (True, True, True, False, False),
        "DeMo_SDTPS": (True, False, False, True, False),
    }
    for folder in ("RGBNT201", "RGBNT100", "MSVR310", "WMVeID863", "Synthetic"):
        for name, switches in expected.items():
            model = load_config(ROOT / f"configs/{folder}/{name}.yml").MODEL
            assert tuple(model[part] for part in parts) == switches


DEMO_FILE = """
MODEL:
  PRETRAIN_PATH_T: '/path/to/ViT-B-16.pt'
  TRANSFORMER_TYPE: 'ViT-B-16'
  STRIDE_SIZE: [ 16, 16 ]
  SIE_CAMERA: True
  DIRECT: {direct}
  SIE_COE: 1.0
  ID_LOSS_WEIGHT: 0.25
  TRIPLET_LOSS_WEIGHT: 1.0
  GLOBAL_LOCAL: True
  HDM: True
  ATM: True
  HEAD: {head}
  PROMPT: False
  ADAPTER: False
  FROZEN: False
  DEVICE_ID: ('0')
INPUT:
  SIZE_TRAIN: {size}
  SIZE_TEST: {size}
  PROB: 0.5
  RE_PROB: 0.5
  PADDING: 10
DATALOADER:
  SAMPLER: 'softmax_triplet'
  NUM_INSTANCE: {instances}
  NUM_WORKERS: 14
DATASETS:
  NAMES: ('{name}')
  ROOT_DIR: '..'
SOLVER:
  BASE_LR: 0.00035
  WARMUP_ITERS: {warmup}
  MAX_EPOCHS: {epochs}
  OPTIMIZER_NAME: 'Adam'
  IMS_PER_BATCH: {batch}
  EVAL_PERIOD: 1
  BIAS_LR_FACTOR: 2
  STEPS: [30, 50]
TEST:
  IMS_PER_BATCH: 128
  RE_RANKING: 'no'
  WEIGHT: ''
  NECK_FEAT: 'before'
  FEAT_NORM: 'yes'
  MISS: "None"
OUTPUT_DIR: '..'
"""
DEMO_FILES = {
    "RGBNT201": {"size": "[256, 128]", "direct": 1, "head": 4, "instances": 8, "batch": 64},
    "RGBNT100": {"size": "[128, 256]", "direct": 0, "head": 8, "instances": 16, "batch": 128},
    "MSVR310": {"size": "[128, 256]", "direct": 0, "head": 8, "instances": 4, "batch": 64},
}
SCHEDULES = {"RGBNT201": (50, 10), "RGBNT100": (30, 5), "MSVR310": (50, 10)}


@pytest.mark.parametrize("name", DEMO_FILES)
def test_demos_own_files_load_unchanged(name: str, tmp_path: Path) -> None:
    epochs, warmup = SCHEDULES[name]
    file = tmp_path / "DeMo.yml"
    file.write_text(DEMO_FILE.format(name=name, epochs=epochs, warmup=warmup, **DEMO_FILES[name]))
    cfg = load_config(file, ["OUTPUT_DIR", "out"])
    assert (name, "0", "nothing") == (cfg.DATASETS.NAMES, cfg.MODEL.DEVICE_ID, cfg.TEST.MISS)
    assert (epochs, warmup) == (cfg.SOLVER.MAX_EPOCHS, cfg.SOLVER.WARMUP_ITERS)
    assert (DEMO_FILES[name]["direct"], DEMO_FILES[name]["head"]) == (cfg.MODEL.DIRECT, cfg.MODEL.HEAD)
    assert cfg.SOLVER.LR_NOISE
    assert not cfg.INPUT.SHARED_AUGMENT


REFUSED = {
    "unknown key": (["MODEL.USE_SDTP", "True"], ["MODEL.USE_SDTP", "MODEL.USE_SDTPS"]),
    "key in the wrong section": (["MODEL.BASE_LR", "1"], ["SOLVER.BASE_LR"]),
    "key without section": (["SEED", "1"], ["SOLVER.SEED"]),
    "lower case": (["model.head", "2"], ["MODEL.HEAD"]),
    "nothing near": (
        ["QQQQ.ZZZZ", "2"],
        ["the sections are MODEL, EDITOR, SIGNAL, INPUT, DATASETS, DATALOADER, SOLVER, TEST,"],
    ),
    "value missing": (["MODEL.HEAD"], ["MODEL.HEAD", "KEY VALUE"]),
    "text for a number": (["SOLVER.MAX_EPOCHS", "many"], ["SOLVER.MAX_EPOCHS", "a whole number", "many"]),
    "fraction for a whole number": (["SOLVER.MAX_EPOCHS", "1.5"], ["SOLVER.MAX_EPOCHS"]),
    "number for a switch": (["MODEL.HDM", "2"], ["MODEL.HDM", "True or False", "not '2'"]),
    "fraction for a switch": (["MODEL.HDM", "1.0"], ["MODEL.HDM", "True or False"]),
    "text for a switch": (["MODEL.HDM", "maybe"], ["MODEL.HDM", "True or False", "maybe"]),
    "switch for a choice of numbers": (["MODEL.DIRECT", "True"], ["MODEL.DIRECT", "one of 0, 1"]),
    "key and value in one word": (["MODEL.HDM=True"], ["write MODEL.HDM True, not MODEL.HDM=True"]),
    "two of them": (["MODEL.HDM=True", "MODEL.HEAD=2"], ["write MODEL.HDM True, not MODEL.HDM=True"]),
    "a list in one word": (["INPUT.SIZE_TRAIN=[8, 8]"], ["write INPUT.SIZE_TRAIN '[8, 8]', not"]),
    "number for a list": (["INPUT.SIZE_TRAIN", "256"], ["INPUT.SIZE_TRAIN", "a list"]),
    "text for a list": (["MODEL.SLIM_LAYERS", "some"], ["MODEL.SLIM_LAYERS takes a list of numbers, not"]),
    "a section": (["MODEL", "1"], ["MODEL is a section", "MODEL.DEVICE"]),
    "ATM without HDM": (["MODEL.ATM", "True"], ["MODEL.ATM", "MODEL.HDM"]),
    "sparse ratio 0": (["MODEL.SDTPS_SPARSE_RATIO", "0.0"], ["SDTPS_SPARSE_RATIO", "above 0"]),
    "sparse ratio above 1": (["MODEL.SDTPS_SPARSE_RATIO", "1.1"], ["SDTPS_SPARSE_RATIO", "1.1"]),
    "ratio that is no number": (["MODEL.SDTPS_SPARSE_RATIO", "nan"], ["SDTPS_SPARSE_RATIO"]),
    "Gumbel without SDTPS": (["MODEL.SDTPS_USE_GUMBEL", "True"], ["SDTPS_USE_GUMBEL", "USE_SDTPS"]),
    "image below a patch": (
        ["INPUT.SIZE_TRAIN", "[8, 8]", "INPUT.SIZE_TEST", "[8, 8]"],
        ["INPUT.SIZE_TRAIN", "patch"],
    ),
    "stride above the patch": (["MODEL.STRIDE_SIZE", "[32, 32]"], ["STRIDE_SIZE", "16"]),
    "sizes differ": (["INPUT.SIZE_TEST", "[128, 64]"], ["SIZE_TRAIN", "SIZE_TEST"]),
    "a million workers": (["DATALOADER.NUM_WORKERS", "1000000"], ["NUM_WORKERS", "between 0 and 256"]),
    "a huge image": (
        ["INPUT.SIZE_TRAIN", "[100000, 100000]", "INPUT.SIZE_TEST", "[100000, 100000]"],
        ["INPUT.SIZE_TRAIN", "two whole numbers between 1 and 4096"],
    ),
    "a large image": (
        ["INPUT.SIZE_TRAIN", "[4096, 4096]", "INPUT.SIZE_TEST", "[4096, 4096]"],
        ["INPUT.SIZE_TRAIN [4096, 4096]", "MODEL.STRIDE_SIZE [16, 16]", "65536 patches", "10000"],
    ),
    "a dense grid": (["MODEL.STRIDE_SIZE", "[1, 1]"], ["MODEL.STRIDE_SIZE [1, 1]", "27233 patches"]),
    "no step": (["MODEL.STRIDE_SIZE", "[0, 16]"], ["MODEL.STRIDE_SIZE", "between 1 and"]),
    "padding above the image": (["INPUT.PADDING", "128"], ["INPUT.PADDING (128)", "[256, 128]"]),
    "a huge batch": (["SOLVER.IMS_PER_BATCH", "8192"], ["SOLVER.IMS_PER_BATCH", "between 1 and 4096"]),
    "a huge test batch": (["TEST.IMS_PER_BATCH", "8192"], ["TEST.IMS_PER_BATCH", "between 1 and 4096"]),
    "an endless training": (["SOLVER.MAX_EPOCHS", "1000000"], ["MAX_EPOCHS", "between 1 and 100000"]),
    "a key that is gone": (["MODEL.SLIM_SCORE", "cosine"], ["MODEL.SLIM_SCORE", "merges", "leave it out"]),
    "a thousand heads": (["MODEL.HEAD", "5000"], ["MODEL.HEAD", "between 1 and 1024"]),
    "size with one number": (["INPUT.SIZE_TRAIN", "[256]"], ["INPUT.SIZE_TRAIN", "two"]),
    "batch not divisible": (["SOLVER.IMS_PER_BATCH", "60"], ["IMS_PER_BATCH", "NUM_INSTANCE"]),
    "one identity per batch": (["SOLVER.IMS_PER_BATCH", "8"], ["IMS_PER_BATCH", "identities"]),
    "noise within epochs": (["SOLVER.LR_PER_STEP", "True"], ["LR_NOISE", "LR_PER_STEP"]),
    "warm-up too long": (["SOLVER.WARMUP_ITERS", "50"], ["WARMUP_ITERS", "MAX_EPOCHS"]),
    "unknown choice": (["SOLVER.OPTIMIZER_NAME", "Lion"], ["OPTIMIZER_NAME", "AdamW", "Lion"]),
    "half a re-ranking": (["TEST.RE_RANKING", "perhaps"], ["TEST.RE_RANKING", "yes, no", "perhaps"]),
    "unknown missing modality": (["TEST.MISS", "x"], ["TEST.MISS", "rn"]),
    "prompt tuning": (["MODEL.PROMPT", "True"], ["MODEL.PROMPT", "not implemented"]),
    "negative learning rate": (["SOLVER.BASE_LR", "-1.0"], ["SOLVER.BASE_LR", "above 0"]),
    "empty output": (["OUTPUT_DIR", ""], ["OUTPUT_DIR"]),
    "blank output": (["OUTPUT_DIR", " "], ["OUTPUT_DIR is empty"]),
    "number for three": (["INPUT.PIXEL_STD", "1"], ["a list of numbers such as [0.5, 0.5, 0.5]"]),
    "a small key in one word": (["model.hdm=on"], ["write model.hdm on, not model.hdm=on"]),
    "unknown reaction to a broken image": (["DATALOADER.ON_ERROR", "ignore"], ["ON_ERROR", "stop", "skip"]),
    "infinite": (["SOLVER.BASE_LR", "1e999"], ["SOLVER.BASE_LR", "finite", "inf"]),
    "infinite in a list": (["INPUT.PIXEL_MEAN", "[0.5, 1e999, 0.5]"], ["INPUT.PIXEL_MEAN", "finite"]),
    "seed beyond NumPy's": (["SOLVER.SEED", "4294967296"], ["SOLVER.SEED", "4294967295"]),
    "beyond a float": (["SOLVER.BASE_LR", "1" + "0" * 400], ["SOLVER.BASE_LR", "finite"]),
    "thousands of digits": (["SOLVER.SEED", "0x" + "f" * 9000], ["SOLVER.SEED", "a very large number"]),
    "a mapping by lists": (["MODEL.HEAD", "{[]: 1}"], ["MODEL.HEAD", "{[]: 1}"]),
    "a line break": (["MODEL.NAME", "a\nb"], ["MODEL.NAME", "printable", "a\\nb"]),
    "two devices": (["MODEL.DEVICE_ID", "0,1"], ["MODEL.DEVICE_ID", "one number"]),
    "a digit that is no number": (["MODEL.DEVICE_ID", "²"], ["MODEL.DEVICE_ID", "one number"]),
}


@pytest.mark.parametrize(("overrides", "mentions"), REFUSED.values(), ids=REFUSED.keys())
def test_bad_settings_are_refused_in_one_sentence(overrides: list[str], mentions: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, overrides)
    message = str(caught.value)
    assert "\n" not in message
    for text in mentions:
        assert text in message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("MODEL.SDTPS_BETA", "0.1"),
        ("MODEL.SDTPS_GUMBEL_TAU", "0.5"),
        ("MODEL.HEAD", "8"),
        ("MODEL.SIE_COE", "3.0"),
        ("MODEL.DROP_PATH", "0.2"),
        ("SOLVER.MARGIN", "0.5"),
        ("SOLVER.MOMENTUM", "0.8"),
    ],
)
def test_settings_without_effect_are_said_to_have_none(
    key: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    warn_about_unused(load_config(None, [key, value]))
    assert f"{key} {value} has no effect" in caplog.text


def test_settings_with_an_effect_are_not_complained_about(caplog: pytest.LogCaptureFixture) -> None:
    used = [
        "MODEL.USE_SDTPS",
        "True",
        "MODEL.SDTPS_BETA",
        "0.1",
        "MODEL.NO_MARGIN",
        "False",
        "SOLVER.MARGIN",
        "0.5",
    ]
    warn_about_unused(load_config(None, used))
    assert not caplog.records


BAD_FILES = {
    "not YAML": ("MODEL: [", "not valid YAML"),
    "a list": ("- 1", "sections"),
    "a value for a section": ("MODEL: 3", "MODEL is a section"),
    "a date that does not exist": ("MODEL:\n  NAME: 2024-13-45", "not valid YAML"),
    "a date for a text": ("MODEL:\n  NAME: 2024-12-24", "MODEL.NAME takes a text such as 'DeMo', not"),
    "a switch for a text": ("MODEL:\n  NAME: on", "MODEL.NAME takes a text such as 'DeMo', not True; put"),
    "brackets without end": ("[" * 5000, "nested too deeply"),
    "a section within itself": ("MODEL: &a\n  HEAD: *a", "a value that contains itself (line 1)"),
    "not a number": ("INPUT:\n  PIXEL_STD: [0.5, .nan, 0.5]", "INPUT.PIXEL_STD takes finite numbers"),
    "a section too deep": ("MODEL:\n  HEAD:\n    X: 1", "MODEL.HEAD takes a whole number"),
    "a section twice": ("MODEL:\n  HEAD: 2\nTEST:\nMODEL:\n  HDM: on", "has 'MODEL' twice, in lines 1 and 4"),
    "a key twice": ("MODEL:\n  HEAD: 2\n  HEAD: 4", "has 'HEAD' twice, in lines 2 and 3"),
    "a key twice, spelled differently": ("MODEL.HEAD: 2\nMODEL:\n  HEAD: 4", "has 'MODEL.HEAD' twice"),
    "a key twice in braces": ("MODEL: {HEAD: 2, 'HEAD': 4}", "has 'HEAD' twice, in lines 1 and 1"),
    "a large file": ("# " + "a" * 100_000, "more than 100000 bytes"),
    "not text": ("MODEL:\n  NAME: \udcff", "is not text in UTF-8: byte 16 is 0xff"),
}


@pytest.mark.parametrize(("text", "mention"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_bad_files_are_refused_with_their_name(text: str, mention: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.yml"
    file.write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert "bad.yml" in str(caught.value)
    assert mention in str(caught.value)


def _doubling(first: str, line: str, depth: int = 60) -> str:
    """A file in which each line uses the one before it ten times."""
    return "\n".join([first, *(line.format(now=f"a{n}", past=f"a{n - 1}") for n in range(1, depth))])


BOMBS = {
    "lists": _doubling("a0: &a0 [x, x]", "{now}: &{now} [*{past}, *{past}, *{past}, *{past}, *{past}]"),
    "merge keys": _doubling("a0: &a0 {x: 1}", "{now}: &{now} {{<<: [*{past}, *{past}, *{past}, *{past}]}}"),
    "mappings": _doubling("a0: &a0 {x: 1}", "{now}: &{now} {{x: *{past}, y: *{past}, z: *{past}}}"),
    "a chain": _doubling("a0: &a0 [x]", "{now}: &{now} [*{past}]", depth=4000),
}


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS.keys())
def test_alias_bombs_end_at_once_in_one_short_sentence(text: str, tmp_path: Path) -> None:
    file = tmp_path / "bomb.yml"
    file.write_text(f"{text}\nMODEL:\n  HEAD: *a3\n")
    with pytest.raises(
        ConfigError, match=r"bomb\.yml (has more than 10000 values|is nested too deeply)"
    ) as caught:
        load_config(file)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "earlier", [BOMBS["merge keys"], "MODEL: [", "MODEL:\n  HEAD: 2\n  HEAD: 4", "text", ""]
)
def test_a_checkpoint_with_a_bad_configuration_is_refused(earlier: str) -> None:
    with pytest.raises(ConfigError, match=r"^checkpoint last\.pth is damaged: its configuration"):
        stored_config(earlier, "last.pth")


def test_aliases_and_merge_keys_still_work(tmp_path: Path) -> None:
    file = tmp_path / "some.yml"
    file.write_text(
        "INPUT:\n  SIZE_TRAIN: &size [128, 64]\n  SIZE_TEST: *size\n"
        "MODEL: &model\n  <<: {HEAD: 2, HDM: on}\n  HEAD: 8\n"
    )
    cfg = load_config(file)
    assert (cfg.INPUT.SIZE_TEST, cfg.MODEL.HEAD, cfg.MODEL.HDM) == ([128, 64], 8, True)


def test_a_section_without_settings_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "some.yml"
    file.write_text("MODEL:\n  # HEAD: 8\nTEST:\n")
    assert load_config(file) == load_config(None)


@pytest.mark.parametrize("place", ["folder", "/dev/zero"])
def test_what_is_no_file_is_named(place: str, tmp_path: Path) -> None:
    path = tmp_path if place == "folder" else Path(place)
    with pytest.raises(ConfigError, match=r"cannot be read: Is a directory|has more than 100000 bytes"):
        load_config(path)


ON, OFF = ("True", "true", "TRUE", "yes", "On", "1"), ("False", "false", "FALSE", "no", "Off", "0")
SPELLINGS = {
    "MODEL.HDM": (True, False),
    "TEST.FEAT_NORM": ("yes", "no"),
    "TEST.RE_RANKING": ("yes", "no"),
    "MODEL.IF_LABELSMOOTH": ("on", "off"),
}


@pytest.mark.parametrize("key", SPELLINGS)
@pytest.mark.parametrize("quote", ["", "'"])
def test_a_switch_takes_every_spelling_in_the_file_and_on_the_command_line(
    key: str, quote: str, tmp_path: Path
) -> None:
    file = tmp_path / "some.yml"
    for texts, meant in zip((ON, OFF), SPELLINGS[key], strict=True):
        for text in texts:
            file.write_text(f"{key}: {quote}{text}{quote}")
            assert dict(flatten(load_config(file)))[key] == meant
            assert dict(flatten(load_config(None, [key, text])))[key] == meant


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yml does not exist"):
        load_config(tmp_path / "nowhere.yml")
    with pytest.raises(ConfigError, match=f"nowhere.yml does not exist in {Path.cwd()}$"):
        load_config("nowhere.yml")


@pytest.mark.parametrize(
    ("written", "meant"),
    [("('RGBNT201')", "RGBNT201"), ('("it\'s")', "it's"), ("('a', 'b')", "('a', 'b')"), ("(a)", "(a)")],
)
def test_only_one_text_in_brackets_is_taken_out_of_them(written: str, meant: str) -> None:
    assert meant == load_config(None, ["MODEL.NAME", written]).MODEL.NAME


def test_a_path_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell expands it too, but not within quotes or in a file."""
    monkeypatch.setenv("HOME", "/home/me")
    file = tmp_path / "home.yml"
    file.write_text("MODEL: {PRETRAIN_PATH_T: ~/weights/ViT-B-16.pt}\nOUTPUT_DIR: runs/~/a\n")
    cfg = load_config(file, ["DATASETS.ROOT_DIR", "~/data"])
    assert cfg.MODEL.PRETRAIN_PATH_T == "/home/me/weights/ViT-B-16.pt"
    assert (cfg.DATASETS.ROOT_DIR, cfg.OUTPUT_DIR) == ("/home/me/data", "runs/~/a")


def test_every_key_is_read_somewhere() -> None:
    """A setting that is read, or none: each key occurs as an attribute in code that reads cfg."""
    readers = [*ROOT.glob("*.py"), *ROOT.glob("*/build.py"), ROOT / "modeling/make_model.py"]
    code = "\n".join(path.read_text() for path in readers)
    for key, _ in flatten(get_cfg()):
        assert f".{key.rpartition('.')[2]}" in code, f"{key} is never read"


def test_a_run_that_is_older_than_a_key_can_be_resumed() -> None:
    cfg = load_config(None, [])
    older = "\n".join(line for line in cfg.dump().splitlines() if "SLIM_" not in line)
    assert older != cfg.dump()
    stored = stored_config(older, "last.pth")
    check_resumable(stored, cfg, force=False)
    with pytest.raises(ConfigError, match=r"MODEL\.SLIM_LAYERS"):
        check_resumable(stored, load_config(None, ["MODEL.SLIM_LAYERS", "[2]"]), force=False)


def test_a_refused_resume_names_the_configuration_of_the_run(tmp_path: Path) -> None:
    stored, file = load_config(None, ["SOLVER.SEED", "3"]), tmp_path / "config.yml"
    for option in ("", f" (--config_file {file})"):  # before and after the file is there
        with pytest.raises(ConfigError) as caught:
            check_resumable(stored, load_config(None, []), force=False, run=tmp_path)
        assert str(caught.value).endswith(f"; resume it with the same ones{option}, or add --force")
        file.write_text(stored.dump())
    check_resumable(stored, load_config(file), force=False, run=tmp_path)


OLD_SLIMMING = """
  SLIM_CROSS: true
  SLIM_GUMBEL_TAU: 1.0
  SLIM_SCORE: attention
  SLIM_USE_GUMBEL: false
  SLIM_WARMUP_EPOCHS: 0"""


def test_a_run_of_the_time_when_slimming_dropped_patches(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its configuration names all keys. Without slimming they had no effect; with it, the result differs."""
    caplog.set_level("INFO")
    cfg = load_config(None, [])
    older = cfg.dump().replace("MODEL:", f"MODEL:{OLD_SLIMMING}")
    file = tmp_path / "config.yml"
    file.write_text(older)
    stored = stored_config(older, "last.pth")
    assert stored.dump() == cfg.dump() == load_config(file).dump()
    check_resumable(stored, cfg, force=False)
    assert "no longer there and had no effect: MODEL.SLIM_CROSS, MODEL.SLIM_GUMBEL_TAU" in caplog.text
    # A trained model may be slimmed now.
    slimmed = ["MODEL.SLIM_LAYERS", "[0]"]
    assert (
        load_config(file, slimmed).MODEL.SLIM_LAYERS
        == [0]
        == load_config(None, slimmed, stored).MODEL.SLIM_LAYERS
    )
    # One that was trained with slimming cannot be used.
    file.write_text(older.replace("SLIM_LAYERS: []", "SLIM_LAYERS: [1, 2]"))
    with pytest.raises(
        ConfigError, match=r"checkpoint last\.pth slims by dropping patches \(MODEL\.SLIM_CROSS\)"
    ):
        stored_config(file.read_text(), "last.pth")
    with pytest.raises(ConfigError, match=r"config\.yml slims by dropping patches"):
        load_config(file)


def test_a_file_builds_on_its_base(tmp_path: Path) -> None:
    (tmp_path / "first.yml").write_text("MODEL: {HEAD: 2, HDM: on}\nSOLVER: {SEED: 5}\n")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "second.yml").write_text("_BASE_: ../first.yml\nMODEL: {HEAD: 8}\n")
    (tmp_path / "third.yml").write_text("_BASE_: more/second.yml\nSOLVER: {SEED: 7}\n")
    cfg = load_config(tmp_path / "third.yml", ["SOLVER.MAX_EPOCHS", "20"])
    assert (cfg.MODEL.HDM, cfg.MODEL.HEAD, cfg.SOLVER.SEED, cfg.SOLVER.MAX_EPOCHS) == (True, 8, 7, 20)
    assert "_BASE_" not in cfg


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("a.yml", r"a\.yml is its own _BASE_; make the files a chain"),
        ("nowhere.yml", r"nowhere\.yml does not exist"),
        ("[1]", r"a\.yml: _BASE_ takes the name of a file beside it, not \[1\]"),
        ("''", r"a\.yml: _BASE_ takes the name of a file beside it, not ''"),
    ],
)
def test_a_base_that_cannot_be_used_is_named(base: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text(f"_BASE_: {base}\n")
    with pytest.raises(ConfigError, match=message):
        load_config(tmp_path / "a.yml")
