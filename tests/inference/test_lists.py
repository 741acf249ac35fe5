"""Folders and CSV files as lists of triples."""

import logging
from pathlib import Path

import pytest

from errors import UserError
from inference.lists import open_list
from structures import PerModality


def touch(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch()


def test_a_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    touch(tmp_path / "RGB", "b.jpg", "a.PNG", "notes.txt", ".hidden.jpg")
    touch(tmp_path / "TI", "b.jpg", "c.jpeg")
    with caplog.at_level(logging.WARNING):
        listed = open_list(tmp_path)
    assert "1 entries of" in caplog.text
    assert (listed.length, listed.num_images) == (3, 4)
    a, b, c = listed.rows()
    assert a.paths == PerModality(tmp_path / "RGB" / "a.PNG", None, None)
    assert b.paths == PerModality(tmp_path / "RGB" / "b.jpg", None, tmp_path / "TI" / "b.jpg")
    assert c.file == str(tmp_path / "TI" / "c.jpeg")
    assert (a.person_id, a.camera_id) == (-1, -1)
    assert list(listed.rows()) == [a, b, c]
    before = listed.sha256
    assert open_list(tmp_path).sha256 == before
    touch(tmp_path / "NI", "b.jpg")
    assert open_list(tmp_path).sha256 != before


def test_a_csv_file(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    path.write_text("rgb,ni,ti,id,camera\n,,t.jpg,7,\n,n.jpg,,,3\n,n.jpg,,,3\n")
    listed = open_list(path)
    assert (listed.length, listed.num_images) == (3, 3)  # a triple may be there twice
    first, second, _ = listed.rows()
    assert (first.file, first.person_id, first.camera_id) == (str(tmp_path / "t.jpg"), 7, -1)
    assert (second.file, second.person_id, second.camera_id) == (str(tmp_path / "n.jpg"), -1, 3)


def test_a_csv_file_without_the_column_of_a_modality(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    path.write_text("ti,id,rgb\nt.jpg,7,r.jpg\n,8,s.jpg\n")
    first, second = open_list(path).rows()
    assert first.paths == PerModality(tmp_path / "r.jpg", None, tmp_path / "t.jpg")
    assert second.paths == PerModality(tmp_path / "s.jpg", None, None)


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has none of the folders RGB, NI, TI; name their parent"):
        open_list(tmp_path)
    touch(tmp_path / "NI")
    with pytest.raises(UserError, match="lists no triples"):
        open_list(tmp_path)
    path = tmp_path / "list.csv"
    path.write_text("rgb,ni,ti\n")
    with pytest.raises(UserError, match="lists no triples"):
        open_list(path)
    path.write_text("rgb,ni,ti,id\na.jpg,,,1\nb.jpg,,,x\n")
    with pytest.raises(UserError, match=r"list\.csv, line 3: id is 'x', not a whole number from 0"):
        open_list(path)
