"""2,000 random file names against each data set reader: the right meaning, or one sentence."""

import os
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from datasets import msvr310, rgbnt100, rgbnt201, wmveid863
from datasets.dataset import DatasetError
from datasets.sources import SOURCES
from structures import Modality

# The same examples in every run: a failure must not depend on the day.
fuzz = settings(derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
GOOD = "000001_cam1_0_00.jpg"
DIGITS = "0123456789"


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
def damaged_names(draw: st.DrawFn, good: str) -> str:
    """A right name with one letter more, less or changed."""
    place = draw(st.integers(0, len(good)))
    letter = draw(st.characters() | st.sampled_from("\n\r\t\0 /\\∕⁄．％．\u202e\u200b\u2028"))
    return good[:place] + letter + good[place + draw(st.integers(0, 1)) :]


strange_names = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        ["", ".", "..", "../../etc/passwd", "..jpg", "CON", "~", "$(true).jpg", "%s%n", "{0}.jpg"]
    ),
    st.binary(max_size=20).map(os.fsdecode),
)
names = st.one_of(near_names(), near_names(), damaged_names(GOOD), strange_names)


@st.composite
def near_vehicle_names(draw: st.DrawFn) -> str:
    """Names of the vehicle sets that are right, or nearly so, part by part."""
    number = st.sampled_from(["0001", "0012", "7", "", "-1", "0000", "1234567", "²", "１"])
    parts = draw(st.lists(st.sampled_from(["c", "s", "v", "n", "cam", "x", ""]), min_size=1, max_size=4))
    joint = draw(st.sampled_from(["_", "_", "_", "", "-", " "]))
    digits = draw(st.sampled_from([1, 3, 4]))
    numbers = [draw(number | st.text(DIGITS, min_size=digits, max_size=digits)) for _ in parts]
    ending = draw(st.sampled_from([".jpg", ".jpg", ".JPEG", ".png", ".bmp", "", ".jpg\n"]))
    return draw(number) + "".join(f"{joint}{p}{n}" for p, n in zip(parts, numbers, strict=True)) + ending


def meaning(name: str) -> tuple[int, int] | None:
    """Identity and camera, told letter by letter and not by the expression of the code."""
    stem = stem_of(name)
    well_formed = (
        stem is not None
        and len(stem) > 12
        and are_digits(stem[:6])
        and stem[6:10] == "_cam"
        and stem[10] in DIGITS[1:]
        and stem[11] == "_"
        and are_word(stem[12:])
    )
    return (int(name[:6]), int(name[10]) - 1) if well_formed else None


def stem_of(name: str) -> str | None:
    """What stands before the ending, if that is one of an image."""
    stem, dot, ending = name.rpartition(".")
    return stem if dot and ending.isascii() and ending.lower() in ("jpg", "jpeg", "png") else None


def are_digits(text: str) -> bool:
    return text != "" and all(letter in DIGITS for letter in text)


def are_word(text: str) -> bool:
    return all(letter == "_" or letter.isalnum() for letter in text)


def leading_digits(text: str) -> str:
    return text[: len(text) - len(text.lstrip(DIGITS))]


def meaning_rgbnt100(name: str) -> tuple[int, int, int] | None:
    person, joint, rest = (stem_of(name) or "").partition("_c")
    camera = leading_digits(rest)
    if not (joint and are_digits(person) and len(person) <= 6 and 1 <= len(camera) <= 6 and are_word(rest)):
        return None
    return (int(person), int(camera) - 1, 0) if int(camera) else None


def meaning_msvr310(name: str) -> tuple[int, int, int] | None:
    stem = stem_of(name) or ""
    well_formed = (
        len(stem) >= 12
        and are_digits(stem[:4])
        and stem[4:6] == "_s"
        and are_digits(stem[6:9])
        and stem[9:11] == "_v"
        and stem[11] in "01234567"
        and stem[12:13] not in tuple(DIGITS)
        and are_word(stem[12:])
    )
    return (int(stem[:4]), int(stem[11]), int(stem[6:9])) if well_formed else None


def meaning_wmveid863(name: str) -> tuple[int, int, int] | None:
    stem = stem_of(name) or ""

    def number_after(letter: str) -> int | None:
        for place, found in enumerate(stem):
            number = leading_digits(stem[place + 1 :])
            before = stem[place - 1 : place]
            is_word = before.isascii() and before.isalpha()
            if found == letter and not is_word and 1 <= len(number) <= 6:
                return int(number)
        return None

    camera, time = number_after("v"), number_after("n")
    if camera is None or time is None or not are_word(stem.replace("-", "_")):
        return None
    return (5, camera, time)


VEHICLES: dict[str, tuple[Callable[[str], object], Callable[[str], object], str]] = {
    "RGBNT100": (rgbnt100.parse_name, meaning_rgbnt100, "0548_c0002_000.jpg"),
    "MSVR310": (msvr310.parse_name, meaning_msvr310, "0002_s002_v0_000.jpg"),
    "WMVeID863": (partial(wmveid863.parse_name, person_id=5), meaning_wmveid863, "0001_v1_n0_000.jpg"),
}


@pytest.mark.parametrize("vehicles", VEHICLES)
@settings(fuzz, max_examples=2000)
@given(st.data())
def test_random_names_of_vehicles(vehicles: str, data: st.DataObject) -> None:
    parse, expected, good = VEHICLES[vehicles]
    name = data.draw(st.one_of(near_vehicle_names(), damaged_names(good), damaged_names(good), strange_names))
    assert parse(name) == expected(name)
    assert parse(good) == expected(good)
    assert parse(good) is not None


@settings(fuzz, max_examples=2000)
@given(names)
@example(GOOD)
@example(f"{GOOD}\n")
@example("٠٠٠٠٠١_cam1_0_00.jpg")
@example("000001_cam1_0_00.ｊｐｇ")
def test_random_names(name: str) -> None:
    labels = rgbnt201.parse_name(name)
    assert (labels and labels[:2]) == meaning(name)


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
    """The folder of a data set."""
    return tmp_path_factory.mktemp("fuzz") / "RGBNT201"


def write(folder: Path, train: set[str], test: set[str], lost: set[str]) -> None:
    """Write empty files; those in `lost` are missing in TI."""
    shutil.rmtree(folder, ignore_errors=True)
    for split, chosen in (("train_171", train), ("test", test)):
        for modality in Modality:
            (folder / split / modality.value).mkdir(parents=True)
            for name in chosen:
                if modality is not Modality.TI or name not in lost:
                    (folder / split / modality.value / name).touch()


@settings(fuzz, max_examples=30, phases=[Phase.generate])  # to shrink a failure would take minutes
@given(
    st.sets(names.filter(writable), min_size=35, max_size=36), st.sampled_from([0, 0, 1, 3]), st.booleans()
)
def test_random_folders(folder: Path, chosen: set[str], num_lost: int, only_good: bool) -> None:
    """30 folders of 35 names: what the parser says reaches records and messages, on a real disk."""
    if only_good:
        chosen = {name for name in chosen if meaning(name)}
    lost = set(sorted(chosen)[:num_lost])
    write(folder, chosen, {"999998_cam1_0_00.jpg"}, lost)
    good = {name: parsed for name in chosen if (parsed := meaning(name))}

    scan = rgbnt201.scan_rgbnt201(folder)
    assert {record.name: (record.person_id, record.camera_id) for record in scan.train} == good
    for record in scan.train:
        for modality in Modality:
            assert record.paths.of(modality) == scan.folder / "train_171" / modality.value / record.name
    for problem in scan.problems:
        assert problem.message.isprintable(), "one line, and no control characters"
        problem.message.encode()
    unparsable = [problem for problem in scan.problems if problem.kind == "unparsable"]
    assert len(unparsable) == len(chosen - good.keys())

    if scan.problems:
        with pytest.raises(DatasetError) as caught:
            SOURCES["RGBNT201"].read(folder)
        head, *lines = str(caught.value).splitlines()
        assert head.startswith(
            f"{len(scan.problems)} problem{'s' * (len(scan.problems) > 1)} with the data set in "
        )
        assert lines[0] == f"  {scan.problems[0].message}"
        assert len(lines) == min(len(scan.problems), 5) + (len(scan.problems) > 5) + 1
    else:
        labels = {person: label for label, person in enumerate(sorted({p for p, _ in good.values()}))}
        train = SOURCES["RGBNT201"].read(folder).train
        assert {r.name: (r.person_id, r.camera_id) for r in train} == {
            name: (labels[person], camera) for name, (person, camera) in good.items()
        }


@settings(fuzz, max_examples=20, phases=[Phase.generate])
@given(st.sets(st.one_of(near_vehicle_names(), strange_names).filter(writable), min_size=20, max_size=21))
@pytest.mark.parametrize("vehicles", VEHICLES)
def test_random_folders_of_vehicles(folder: Path, vehicles: str, chosen: set[str]) -> None:
    """Every name is a record with its meaning, or one problem; folders of identities are fuzzed too."""
    _, expected, good = VEHICLES[vehicles]
    shutil.rmtree(folder, ignore_errors=True)
    split = {"RGBNT100": "rgbir/bounding_box_train", "MSVR310": "bounding_box_train"}.get(vehicles, "train")
    places = [""] if vehicles == "RGBNT100" else ["0005/vis", "0005/ni", "0005/th"]
    for place in places:
        (folder / split / place).mkdir(parents=True)
        for name in {*chosen, good}:
            (folder / split / place / name).touch()
    if vehicles != "RGBNT100":
        for name in chosen - {"0005", "5"}:
            (folder / split / name).mkdir(exist_ok=True)

    scan = SOURCES[vehicles].scan(folder)
    read = {r.name: (r.person_id, r.camera_id, r.scene_id) for r in scan.train}
    assert read == {name: labels for name in {*chosen, good} if (labels := expected(name))}
    unparsable = [problem for problem in scan.problems if problem.kind == "unparsable"]
    foreign = 0 if vehicles == "RGBNT100" else len([n for n in chosen if not are_digits(n) or len(n) > 6])
    assert len(unparsable) == len({*chosen, good}) - len(read) + foreign
    for problem in scan.problems:
        assert problem.message.isprintable()
        problem.message.encode()
