from pathlib import Path

from datasets.build import fingerprint
from datasets.sources import SOURCES
from miniatures import draw_miniature
from structures import Modality


def fingerprint_of(folder: Path) -> str:
    return fingerprint(SOURCES["RGBNT201"].read(folder).train, folder)


def test_it_changes_with_the_records_and_not_with_the_folder(tmp_path: Path) -> None:
    folder = draw_miniature("RGBNT201", tmp_path / "one")
    first = fingerprint_of(folder)
    assert fingerprint_of(folder.rename(tmp_path / "elsewhere")) == first
    folder = tmp_path / "elsewhere"
    for modality in Modality:
        (folder / "train_171" / modality.value / "000002_cam1_1_00.jpg").unlink()
    assert fingerprint_of(folder) != first


def test_two_images_that_change_places_under_their_names_change_it(tmp_path: Path) -> None:
    folder = draw_miniature("RGBNT201", tmp_path)
    first = fingerprint_of(folder)
    for modality in Modality:
        one, other = (folder / "train_171" / modality.value / f"00000{n}_cam1_1_00.jpg" for n in (2, 3))
        one_bytes, other_bytes = one.read_bytes(), other.read_bytes()
        one.write_bytes(other_bytes)
        other.write_bytes(one_bytes)
    assert fingerprint_of(folder) != first
