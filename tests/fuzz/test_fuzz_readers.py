"""2,000 random file names against each data set reader: the right meaning, or one sentence."""

import os
import re
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from datasets.build import READERS, SCANNERS
from datasets.dataset import DatasetError
from datasets.rgbnt201 import parse_name
from structures import Modality

# The same examples in every run: a failure must not depend on the day.
fuzz = settings(derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
GOOD = "000001_cam1_0_00.jpg"


@st.composite
def near_names(draw: st.DrawFn) -> str:
    """Names that are right, or nearly so, part by part."""
    person = draw(st.sampled_from(["000001", "999999", "000000", "00001", "0000001", "-00001", "+00001"]))
    camera = draw(st.sampled_from(["1", "9", "0", "12", "", "a", "-1", "１", "²", "١"]))
    label = draw(st.sampled_from(["_cam", "_cam", "_cam", "_Cam", "_c", "cam", "_cam_", "_саm"]))
    rest = draw(
        st.sampled_from(["_0_00", "_0_00", "_x", "_", "", "_0 0", "_0-0", "_é", "_0.0", "_" + "0" * 300])
    )
    ending = draw(
        st.sampled_from([".jpg", ".JPG", ".jpeg", ".PNG", ".bmp", "", ".jpg.bak", ".jpg ", ".jpg\n"])
    )
    if draw(st.booleans()):
        person = draw(st.text("0123456789", min_size=6, max_size=6))
    if draw(st.booleans()):
        camera, label, rest = draw(st.sampled_from("123456789")), "_cam", "_0_00"
    return f"{person}{label}{camera}{rest}{ending}"


@st.composite
def damaged_names(draw: st.DrawFn) -> str:
    """A right name with one letter more, less or changed."""
    place = draw(st.integers(0, len(GOOD)))
    letter = draw(st.characters() | st.sampled_from("\n\r\t\0 /\\∕⁄．％．\u202e\u200b\u2028"))
    return GOOD[:place] + letter + GOOD[place + draw(st.integers(0, 1)) :]


names = st.one_of(
    near_names(),
    near_names(),
    damaged_names(),
    st.text(max_size=40),
    st.sampled_from(
        ["", ".", "..", "../../etc/passwd", "..jpg", "CON", "~", "$(true).jpg", "%s%n", "{0}.jpg"]
    ),
    st.binary(max_size=20).map(os.fsdecode),
)


def meaning(name: str) -> tuple[int, int] | None:
    """Identity and camera, told letter by letter and not by the expression of the code."""
    stem, dot, ending = name.rpartition(".")
    digits = "0123456789"
    well_formed = (
        dot == "."
        and ending.isascii()
        and ending.lower() in ("jpg", "jpeg", "png")
        and len(stem) > 12
        and all(letter in digits for letter in stem[:6])
        and stem[6:10] == "_cam"
        and stem[10] in digits[1:]
        and stem[11] == "_"
        and all(letter == "_" or letter.isalnum() for letter in stem[12:])
    )
    return (int(stem[:6]), int(stem[10]) - 1) if well_formed else None


@settings(fuzz, max_examples=2000)
@given(names)
@example(GOOD)
@example(f"{GOOD}\n")
@example("٠٠٠٠٠١_cam1_0_00.jpg")
@example("000001_cam1_0_00.ｊｐｇ")
def test_random_names(name: str) -> None:
    assert parse_name(name) == meaning(name)


def writable(name: str) -> bool:
    """Whether the name can be given to a file that the reader sees."""
    try:
        size = len(os.fsencode(name))
    except UnicodeEncodeError:
        return False
    return (
        0 < size < 250 and not re.search(r"[/\0]", name) and not name.startswith(".") and name != "Thumbs.db"
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a data set, under the name of each."""
    root = tmp_path_factory.mktemp("fuzz")
    (root / "Synthetic").symlink_to(root / "RGBNT201")
    return root / "RGBNT201"


def write(folder: Path, train: set[str], test: set[str], lost: set[str]) -> None:
    """Write empty files; those in `lost` are missing in TI."""
    shutil.rmtree(folder, ignore_errors=True)
    for split, chosen in (("train_171", train), ("test", test)):
        for modality in Modality:
            (folder / split / modality.value).mkdir(parents=True)
            for name in chosen:
                if modality is not Modality.TI or name not in lost:
                    (folder / split / modality.value / name).touch()


@pytest.fixture
def _draw_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the folder as the synthetic set too, which would otherwise be drawn anew."""
    monkeypatch.setattr("datasets.build.ensure_synthetic", lambda root, seed: root / "Synthetic")


@pytest.mark.usefixtures("_draw_nothing")
@pytest.mark.parametrize("reader", sorted(READERS))
@settings(fuzz, max_examples=30, phases=[Phase.generate])  # to shrink a failure would take minutes
@given(
    st.sets(names.filter(writable), min_size=35, max_size=36), st.sampled_from([0, 0, 1, 3]), st.booleans()
)
def test_random_folders(folder: Path, reader: str, chosen: set[str], num_lost: int, only_good: bool) -> None:
    """30 folders of 35 names: what the parser says reaches records and messages, on a real disk."""
    if only_good:
        chosen = {name for name in chosen if meaning(name)}
    lost = set(sorted(chosen)[:num_lost])
    write(folder, chosen, {"999998_cam1_0_00.jpg"}, lost)
    good = {name: parsed for name in chosen if (parsed := meaning(name))}

    scan = SCANNERS[reader](folder.parent)
    assert {record.name: (record.person_id, record.camera_id) for record in scan.train} == good
    for record in scan.train:
        for modality in Modality:
            assert record.paths.of(modality).parent == scan.folder / "train_171" / modality.value
    for problem in scan.problems:
        assert problem.message.isprintable(), "one line, and no control characters"
        problem.message.encode()
    unparsable = [problem for problem in scan.problems if problem.kind == "unparsable"]
    assert len(unparsable) == len(chosen - good.keys())

    if scan.problems:
        with pytest.raises(DatasetError) as caught:
            READERS[reader](folder.parent)
        head, *lines = str(caught.value).splitlines()
        assert head.startswith(f"{len(scan.problems)} problem(s) with the data set in ")
        assert lines[0] == f"  {scan.problems[0].message}"
        assert len(lines) == min(len(scan.problems), 5) + (len(scan.problems) > 5) + 1
    else:
        labels = {person: label for label, person in enumerate(sorted({p for p, _ in good.values()}))}
        train = READERS[reader](folder.parent).train
        assert {r.name: (r.person_id, r.camera_id) for r in train} == {
            name: (labels[person], camera) for name, (person, camera) in good.items()
        }
