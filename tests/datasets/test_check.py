"""Each kind of broken file, made on purpose, is found; a good data set has no problem."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from datasets.check import PROBLEM_KINDS, check_file, files_of, find_problems
from datasets.dataset import Problem, Scan
from datasets.msvr310 import scan_msvr310
from datasets.rgbnt100 import scan_rgbnt100
from datasets.rgbnt201 import scan_rgbnt201
from datasets.wmveid863 import scan_wmveid863
from miniatures import draw_miniature
from structures import ImageRecord, PerModality

NAMES = {
    "train_171": ["000003_cam1_0_00.png", "000003_cam2_0_00.png", "000007_cam1_0_00.png"],
    "test": ["000002_cam1_0_00.png", "000009_cam1_0_00.png"],
}
FIRST = Path("train_171/RGB/000003_cam1_0_00.png")


def save(path: Path, size: tuple[int, int] = (32, 16), seed: int = 0) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, format="JPEG" if path.suffix == ".jpg" else "PNG")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """15 images of noise, 32 x 16 pixels, and 2 masks that are alike."""
    for split, names in NAMES.items():
        for kind in ("RGB", "NI", "TI"):
            (tmp_path / split / kind).mkdir(parents=True)
            for number, name in enumerate(names):
                save(tmp_path / split / kind / name, seed=sum(f"{split}{kind}".encode()) * 10 + number)
    (tmp_path / "test" / "MASK").mkdir()
    for name in NAMES["test"]:
        save(tmp_path / "test" / "MASK" / name)
    return tmp_path


def problems_of(
    root: Path, patch: int = 16, scan_folder: Callable[[Path], Scan] = scan_rgbnt201
) -> list[Problem]:
    scan = scan_folder(root)
    return find_problems(scan, {path: check_file(path) for path in files_of(scan)}, patch=patch)


def only_problem(root: Path, patch: int = 16) -> Problem:
    (problem,) = problems_of(root, patch)
    return problem


def test_a_good_data_set_has_no_problem(root: Path) -> None:
    assert len(files_of(scan_rgbnt201(root))) == 17
    assert problems_of(root) == []


def cut(path: Path, share: float) -> None:
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])


DAMAGE: dict[str, tuple[str, Callable[[Path], object]]] = {
    "no bytes": ("empty", lambda path: path.write_bytes(b"")),
    "text": ("non-image", lambda path: path.write_text("not an image")),
    "another format": ("non-image", lambda path: Image.new("RGB", (16, 32)).save(path, format="GIF")),
    "postscript": ("non-image", lambda path: Image.new("RGB", (16, 32)).save(path, format="EPS")),
    "half": ("truncated", lambda path: cut(path, 0.5)),
    "the end": ("truncated", lambda path: cut(path, 0.95)),
    "the header": ("truncated", lambda path: path.write_bytes(path.read_bytes()[:12])),
}


@pytest.mark.parametrize(("kind", "damage"), DAMAGE.values(), ids=DAMAGE.keys())
@pytest.mark.parametrize("place", [FIRST, Path("test/TI/000009_cam1_0_00.png")], ids=["train", "test"])
def test_broken_files(root: Path, place: Path, kind: str, damage: Callable[[Path], object]) -> None:
    damage(root / place)
    problem = only_problem(root)
    assert (problem.kind, problem.path) == (kind, str(place))
    assert problem.message.startswith(f"{place} ")


def test_truncated_jpeg(tmp_path: Path) -> None:
    save(tmp_path / "some.jpg")
    assert check_file(tmp_path / "some.jpg").size == (32, 16)
    for share, kind in ((0.97, "truncated"), (0.01, "truncated")):
        cut(tmp_path / "some.jpg", share)
        problem = check_file(tmp_path / "some.jpg").problem
        assert problem is not None
        assert problem[0] == kind


def test_broken_mask(root: Path) -> None:
    (root / "test/MASK/000002_cam1_0_00.png").write_bytes(b"")
    assert only_problem(root) == (
        "empty",
        "test/MASK/000002_cam1_0_00.png",
        "test/MASK/000002_cam1_0_00.png is empty",
    )


def test_a_file_that_may_not_be_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert check_file(root / FIRST).problem == ("unreadable", "cannot be read (Permission denied)")


def test_an_image_that_would_fill_the_memory(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 512)
    save(root / FIRST, size=(64, 17))
    problems = problems_of(root, patch=1)
    assert [(problem.kind, problem.path) for problem in problems] == [("wrong-size", str(FIRST))]
    assert "too large" in problems[0].message


def test_unusual_size(root: Path) -> None:
    save(root / FIRST, size=(48, 16))
    problem = only_problem(root)
    assert problem.kind == "wrong-size"
    assert problem.message == f"{FIRST} has 48 x 16 pixels, where most images have 32 x 16"


def test_smaller_than_a_patch(root: Path) -> None:
    save(root / FIRST, size=(32, 15))
    assert only_problem(root).message == f"{FIRST} has 32 x 15 pixels, less than one patch of 16"


def test_without_a_usual_size_only_the_triples_must_agree(root: Path) -> None:
    for number, name in enumerate(NAMES["train_171"]):
        for kind in ("RGB", "NI", "TI"):
            save(root / "train_171" / kind / name, size=(40 + number, 20), seed=sum(f"{kind}{name}".encode()))
    assert problems_of(root) == []
    save(root / "train_171" / "TI" / FIRST.name, size=(40, 21))
    problem = only_problem(root)
    assert (problem.kind, problem.path) == ("wrong-size", str(FIRST))
    assert problem.message.endswith("and its partners differ in size: RGB 40 x 20, NI 40 x 20, TI 40 x 21")


def test_mask_of_another_size(root: Path) -> None:
    save(root / "test/MASK/000002_cam1_0_00.png", size=(32, 17))
    assert only_problem(root).path == "test/MASK/000002_cam1_0_00.png"


def test_the_same_content_under_two_identities(root: Path) -> None:
    content = (root / FIRST).read_bytes()
    copies = ["train_171/NI/000007_cam1_0_00.png", "test/RGB/000002_cam1_0_00.png"]
    for copy in copies:
        (root / copy).write_bytes(content)
    problem = only_problem(root)
    assert problem.kind == "duplicated"
    assert problem.message == f"{FIRST} has the same content as {copies[0]}, {copies[1]}"


def test_the_same_content_under_one_identity_is_allowed(root: Path) -> None:
    (root / "train_171/RGB/000003_cam2_0_00.png").write_bytes((root / FIRST).read_bytes())
    assert problems_of(root) == []


def test_folders_that_the_reader_refuses_are_checked_all_the_same(root: Path) -> None:
    (root / "train_171/NI/000007_cam1_0_00.png").unlink()
    save(root / "train_171/RGB/hello.png")
    cut(root / "train_171/TI/000007_cam1_0_00.png", 0.5)
    (root / "test/MASK/000002_cam1_0_00.png").unlink()
    for kind in ("RGB", "NI", "TI"):
        save(root / "test" / kind / "000003_cam4_0_00.png", seed=len(kind) + ord(kind[0]))
    save(root / "test/MASK/000003_cam4_0_00.png")
    found = [(problem.kind, problem.path) for problem in problems_of(root)]
    assert found == [
        ("unparsable", "train_171/RGB/hello.png"),
        ("unpaired", "train_171/RGB/000007_cam1_0_00.png"),
        ("mask", "test/MASK/000002_cam1_0_00.png"),
        ("identity", "test"),
        ("truncated", "train_171/TI/000007_cam1_0_00.png"),
    ]
    assert [kind for kind in PROBLEM_KINDS if kind in dict(found)] == [kind for kind, _ in found]


@pytest.mark.parametrize(
    ("name", "scan_folder", "num_files"),
    [("RGBNT100", scan_rgbnt100, 48), ("MSVR310", scan_msvr310, 144), ("WMVeID863", scan_wmveid863, 144)],
)
def test_vehicle_sets(name: str, scan_folder: Callable[[Path], Scan], num_files: int, tmp_path: Path) -> None:
    folder = draw_miniature(name, tmp_path)
    files = files_of(scan_folder(folder))
    assert len(files) == len(set(files)) == num_files  # a strip is opened once
    assert problems_of(folder, scan_folder=scan_folder) == []
    query, gallery = (next(path for path in files if part in str(path)) for part in ("query", "test/"))
    cut(query, 0.5)
    gallery.write_bytes(b"")
    problems = problems_of(folder, scan_folder=scan_folder)
    assert [problem.kind for problem in problems] == ["empty", "truncated"]
    assert [folder / problem.path for problem in problems] == [gallery, query]


def test_strips_of_a_wrong_size(tmp_path: Path) -> None:
    folder = draw_miniature("RGBNT100", tmp_path)
    names = ["0002_c0001_010.jpg", "0003_c0001_010.jpg", "0005_c0001_010.jpg", "0008_c0001_010.jpg"]
    train = folder / "rgbir" / "bounding_box_train"
    for seed, (name, size) in enumerate(zip(names, [(32, 97), (33, 96), (8, 96), (32, 99)], strict=True)):
        save(train / name, size, seed)
    messages = [problem.message for problem in problems_of(folder, scan_folder=scan_rgbnt100)]
    assert messages == [
        f"rgbir/bounding_box_train/{name} {what}"
        for name, what in zip(
            names,
            [
                "does not hold three images side by side: its width of 97 pixels is no multiple of 3",
                "does not hold three images side by side: its height of 33 pixels is more than a third of "
                "its width of 96",
                "has 8 x 96 pixels, less than one patch of 16",
                "has 32 x 99 pixels, where most images have 32 x 96",
            ],
            strict=True,
        )
    ]


def test_a_set_with_two_modalities(tmp_path: Path) -> None:
    records = []
    for number in range(3):
        paths = [tmp_path / f"{kind}_{number}.png" for kind in ("NI", "TI")]
        for offset, path in enumerate(paths):
            save(path, seed=2 * number + offset)
        records.append(ImageRecord(PerModality(None, *paths), number, 0))
    scan = Scan(tmp_path, "", tuple(records[:1]), tuple(records[1:]), tuple(records[2:]), ())
    assert len(files_of(scan)) == 6
    assert problems_of(tmp_path, scan_folder=lambda _: scan) == []
    save(tmp_path / "TI_2.png", size=(48, 16))
    save(tmp_path / "NI_0.png", seed=3)
    assert [problem.kind for problem in problems_of(tmp_path, scan_folder=lambda _: scan)] == [
        "wrong-size",
        "duplicated",
    ]
