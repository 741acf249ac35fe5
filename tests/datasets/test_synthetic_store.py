import json
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from datasets.dataset import DatasetError
from datasets.sources import SOURCES
from datasets.synthetic import DrawnSpec, SpecV1, SyntheticSpec, ensure_synthetic, store

MINI = SyntheticSpec(train_ids=3, test_ids=2, cameras=2, train_shots=2, test_shots=1, height=32, width=16)
KINDS = ("RGB", "NI", "TI", "MASK")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def write_times(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.fixture(scope="module")
def mini(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_synthetic(tmp_path_factory.mktemp("mini"), spec=MINI)


class TestLayout:
    @pytest.mark.parametrize(("split", "ids", "shots"), [("train_171", (1, 2, 3), 2), ("test", (4, 5), 1)])
    def test_names_and_counts(self, mini: Path, split: str, ids: tuple[int, ...], shots: int) -> None:
        stems = {
            f"{person:06d}_cam{camera}_0_{shot:02d}"
            for person in ids
            for camera in (1, 2)
            for shot in range(shots)
        }
        for kind in KINDS:
            suffix = ".png" if kind == "MASK" else ".jpg"
            assert {path.name for path in (mini / split / kind).iterdir()} == {s + suffix for s in stems}

    def test_the_real_reader_reads_it(self, mini: Path) -> None:
        splits = SOURCES["RGBNT201"].read(mini)
        assert (len(splits.train), len(splits.query)) == (12, 4)
        assert {record.person_id for record in splits.train} == {0, 1, 2}
        assert {record.person_id for record in splits.query} == {4, 5}
        assert {record.camera_id for record in splits.query} == {0, 1}
        assert all(record.mask_path is not None for record in splits.train)

    def test_sets_of_other_names_stand_side_by_side(self, tmp_path: Path) -> None:
        counts = {"train_ids": 2, "test_ids": 1, "cameras": 2, "train_shots": 1, "test_shots": 1}
        sets = {"Synthetic": SyntheticSpec(**counts, height=32, width=16), "Old": SpecV1(**counts)}
        folders = [ensure_synthetic(tmp_path, name=name, spec=spec) for name, spec in sets.items()]
        assert folders == [tmp_path / "Synthetic", tmp_path / "Old"]
        assert [json.loads((folder / "stamp.json").read_text())["generator"] for folder in folders] == [2, 1]

    def test_a_set_of_version_1_is_replaced_by_one_of_version_2(self, mini: Path, tmp_path: Path) -> None:
        """Folders of the first release hold version 1 under the name that is now version 2."""
        ensure_synthetic(tmp_path, spec=SpecV1(train_ids=4, test_ids=1, train_shots=1, test_shots=1))
        assert contents(ensure_synthetic(tmp_path, spec=MINI)) == contents(mini)

    def test_image_sizes_and_channels(self, mini: Path) -> None:
        for kind, channels in zip(KINDS, ("RGB", "L", "RGB", "1"), strict=True):
            for path in (mini / "test" / kind).iterdir():
                with Image.open(path) as image:
                    assert (image.size, image.mode) == ((16, 32), channels)

    def test_masks_are_black_and_white_and_fill_the_crop(self, mini: Path) -> None:
        for path in mini.rglob("MASK/*.png"):
            mask = np.asarray(Image.open(path).convert("L"))
            assert set(np.unique(mask)) == {0, 255}
            assert 0.15 < (mask == 255).mean() < 0.6

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("train_ids", 0),
            ("cameras", 10),
            ("spoiled_share", 1.5),
            ("occluder_share", -0.1),
            ("placement_noise", 2.0),
            ("company_share", -1.0),
        ],
    )
    def test_impossible_spec_is_refused(self, field: str, value: float) -> None:
        with pytest.raises(ValueError, match=field):
            SyntheticSpec(**{field: value})  # type: ignore[arg-type]


class TestSeed:
    def test_same_seed_gives_the_same_bytes(self, mini: Path, tmp_path: Path) -> None:
        assert contents(ensure_synthetic(tmp_path, spec=MINI)) == contents(mini)

    def test_other_seed_changes_every_file(self, mini: Path, tmp_path: Path) -> None:
        ours, others = contents(mini), contents(ensure_synthetic(tmp_path, seed=1, spec=MINI))
        assert ours.keys() == others.keys()
        assert all(ours[name] != others[name] for name in ours)

    def test_no_two_samples_are_alike(self, mini: Path) -> None:
        images = list(contents(mini).values())
        assert len(set(images)) == len(images)

    def test_sample_does_not_depend_on_how_many_others_are_drawn(self, mini: Path, tmp_path: Path) -> None:
        more = ensure_synthetic(tmp_path, spec=replace(MINI, train_shots=3))
        name = "train_171/RGB/000002_cam2_0_01.jpg"
        assert (more / name).read_bytes() == (mini / name).read_bytes()


class TestCache:
    def test_several_processes_draw_the_same_files(
        self, mini: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(store, "_CHUNK", 5)
        monkeypatch.setattr(store, "_num_cores", lambda: 2)
        assert contents(ensure_synthetic(tmp_path, spec=MINI)) == contents(mini)

    def test_a_process_that_fails_leaves_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(store, "_CHUNK", 5)
        monkeypatch.setattr(store, "_num_cores", lambda: 2)
        monkeypatch.setattr(store, "_save", full)
        with pytest.raises(OSError, match="No space left"):
            ensure_synthetic(tmp_path, spec=MINI)
        assert os.listdir(tmp_path) == []

    def test_second_call_writes_nothing(self, mini: Path) -> None:
        before = write_times(mini)
        assert ensure_synthetic(mini.parent, spec=MINI) == mini
        assert write_times(mini) == before

    @pytest.mark.parametrize("change", ["seed", "spec", "version"])
    def test_other_stamp_redraws(self, tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = ensure_synthetic(tmp_path, spec=MINI)
        image = folder / "train_171" / "RGB" / "000001_cam1_0_00.jpg"
        image.write_bytes(b"outdated")
        if change == "version":
            monkeypatch.setattr(SyntheticSpec, "generator", SyntheticSpec.generator + 1)
        spec = replace(MINI, occluder_share=0.9) if change == "spec" else MINI
        ensure_synthetic(tmp_path, seed=int(change == "seed"), spec=spec)
        assert image.read_bytes() != b"outdated"
        assert os.listdir(tmp_path) == ["Synthetic"]

    def test_unreadable_stamp_redraws(self, mini: Path, tmp_path: Path) -> None:
        folder = ensure_synthetic(tmp_path, spec=MINI)
        (folder / "stamp.json").write_text("{")
        assert contents(ensure_synthetic(tmp_path, spec=MINI)) == contents(mini)

    @pytest.mark.parametrize("lost", ["test/TI/000004_cam1_0_00.jpg", "train_171/MASK/000001_cam2_0_01.png"])
    def test_lost_file_redraws(self, mini: Path, tmp_path: Path, lost: str) -> None:
        (ensure_synthetic(tmp_path, spec=MINI) / lost).unlink()
        assert contents(ensure_synthetic(tmp_path, spec=MINI)) == contents(mini)

    def test_interruption_leaves_nothing_that_counts(
        self, mini: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls = 0

        def interrupted(*args: object) -> None:
            nonlocal calls
            calls += 1
            if calls == 5:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(store, "_save", interrupted)
            with pytest.raises(KeyboardInterrupt):
                ensure_synthetic(tmp_path, spec=MINI)
        assert os.listdir(tmp_path) == []
        assert contents(ensure_synthetic(tmp_path, spec=MINI)) == contents(mini)

    def test_interrupted_redrawing_keeps_the_old_set(
        self, mini: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = ensure_synthetic(tmp_path, spec=MINI)

        def interrupted(*args: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(store, "_save", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ensure_synthetic(tmp_path, seed=1, spec=MINI)
        assert contents(folder) == contents(mini)

    def test_scratch_of_a_killed_process_is_removed_and_of_a_running_one_is_not(self, tmp_path: Path) -> None:
        killed, running = tmp_path / ".Synthetic-drawing-killed", tmp_path / ".Synthetic-drawing-running"
        for scratch in (killed, running):
            (scratch / "drawn" / "train_171").mkdir(parents=True)
        two_hours_ago = time.time() - 7200
        os.utime(killed, (two_hours_ago, two_hours_ago))
        mine = tmp_path / ".Synthetic-drawing-by-hand"
        mine.mkdir()
        (mine / "sketch.png").write_text("precious")
        os.utime(mine, (two_hours_ago, two_hours_ago))
        ensure_synthetic(tmp_path, spec=MINI)
        assert sorted(os.listdir(tmp_path)) == [mine.name, running.name, "Synthetic"]
        assert (mine / "sketch.png").read_text() == "precious"

    def test_set_that_another_process_finished_first_is_used(
        self, mini: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        draw_all = store._draw_all
        first: dict[Path, int] = {}

        def overtaken(folder: Path, seed: int, spec: DrawnSpec) -> int:
            monkeypatch.setattr(store, "_draw_all", draw_all)
            first.update(write_times(ensure_synthetic(tmp_path, seed=seed, spec=spec)))
            return draw_all(folder, seed, spec)

        monkeypatch.setattr(store, "_draw_all", overtaken)
        folder = ensure_synthetic(tmp_path, spec=MINI)
        assert contents(folder) == contents(mini)
        assert write_times(folder) == first
        assert os.listdir(tmp_path) == ["Synthetic"]

    def test_foreign_folder_is_refused_and_kept(self, tmp_path: Path) -> None:
        precious = tmp_path / "Synthetic" / "thesis.txt"
        precious.parent.mkdir()
        precious.write_text("years of work")
        with pytest.raises(DatasetError, match=r"stamp\.json"):
            ensure_synthetic(tmp_path, spec=MINI)
        assert precious.read_text() == "years of work"

    @pytest.mark.parametrize("name", ["test/RGB/mine.jpg", "mine.jpg", "train_171/RGB/000099_cam1_0_00.jpg"])
    def test_foreign_file_does_not_lead_to_a_new_drawing(self, tmp_path: Path, name: str) -> None:
        folder = ensure_synthetic(tmp_path, spec=MINI)
        (folder / name).write_text("precious")
        before = write_times(folder)
        assert ensure_synthetic(tmp_path, spec=MINI) == folder
        assert write_times(folder) == before

    @pytest.mark.parametrize(
        "name", ["test/RGB/mine.jpg", "notes/mine.txt", "train_171/RGB/000099_cam1_0_00.jpg"]
    )
    @pytest.mark.parametrize("cause", ["lost file", "other seed", "other spec", "unreadable stamp"])
    def test_set_with_foreign_files_is_not_drawn_anew(self, tmp_path: Path, name: str, cause: str) -> None:
        folder = ensure_synthetic(tmp_path, spec=MINI)
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("precious")
        if cause == "lost file":
            (folder / "test" / "TI" / "000004_cam1_0_00.jpg").unlink()
        if cause == "unreadable stamp":
            (folder / "stamp.json").write_text("[]")
        spec = replace(MINI, train_shots=1) if cause == "other spec" else MINI
        before = contents(folder)
        with pytest.raises(DatasetError, match=rf"must be drawn anew, but .*{name} was not drawn"):
            ensure_synthetic(tmp_path, seed=int(cause == "other seed"), spec=spec)
        assert contents(folder) == before
        assert os.listdir(tmp_path) == ["Synthetic"]

    def test_foreign_file_that_comes_while_drawing_is_kept(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = ensure_synthetic(tmp_path, spec=MINI)
        draw_all = store._draw_all

        def disturbed(drawn: Path, seed: int, spec: DrawnSpec) -> int:
            (folder / "mine.txt").write_text("precious")
            return draw_all(drawn, seed, spec)

        monkeypatch.setattr(store, "_draw_all", disturbed)
        with pytest.raises(DatasetError, match=r"mine\.txt was not drawn"):
            ensure_synthetic(tmp_path, seed=1, spec=MINI)
        assert (folder / "mine.txt").read_text() == "precious"
        assert os.listdir(tmp_path) == ["Synthetic"]

    def test_links_are_read_but_not_replaced(self, mini: Path, tmp_path: Path) -> None:
        (tmp_path / "Synthetic").symlink_to(mini)
        assert ensure_synthetic(tmp_path, spec=MINI) == tmp_path / "Synthetic"
        before = contents(mini)
        with pytest.raises(DatasetError, match="is a symbolic link"):
            ensure_synthetic(tmp_path, seed=1, spec=MINI)
        assert (tmp_path / "Synthetic").is_symlink()
        assert contents(mini) == before
        (tmp_path / "Other").symlink_to(tmp_path / "nowhere")
        with pytest.raises(DatasetError, match="is a symbolic link"):
            ensure_synthetic(tmp_path, name="Other", spec=MINI)
        assert (tmp_path / "Other").is_symlink()

    def test_smaller_set_takes_the_place_of_a_larger_one(self, mini: Path, tmp_path: Path) -> None:
        ensure_synthetic(tmp_path, spec=replace(MINI, train_shots=3))
        assert contents(ensure_synthetic(tmp_path, spec=MINI)) == contents(mini)

    def test_empty_folder_is_filled(self, mini: Path, tmp_path: Path) -> None:
        (tmp_path / "Synthetic").mkdir()
        assert contents(ensure_synthetic(tmp_path, spec=MINI)) == contents(mini)

    def test_stamp_tells_what_was_drawn(self, mini: Path) -> None:
        stamp = json.loads((mini / "stamp.json").read_text())
        assert stamp["seed"] == 0
        assert stamp["spec"]["train_ids"] == 3
