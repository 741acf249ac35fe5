import json
import os
import time
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from datasets import synthetic
from datasets.dataset import DatasetError
from datasets.sources import SOURCES
from datasets.synthetic import DEFAULT_SPEC, HARD_SPEC, SyntheticSpec, ensure_synthetic
from datasets.synthetic_body import Build, Part, Pose, PosedBody, pose_body
from datasets.synthetic_person import Heat, Person, Reflectance
from datasets.synthetic_scene import Camera, Triple, draw_triple
from structures import Modality

MINI = SyntheticSpec(train_ids=3, test_ids=2, cameras=2, train_shots=2, test_shots=1, height=32, width=16)
KINDS = ("RGB", "NI", "TI", "MASK")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def write_times(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.fixture(scope="module")
def mini(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_synthetic(tmp_path_factory.mktemp("mini"), spec=MINI)


def sample(
    seed: int = 0,
    *,
    person: int = 1,
    size: tuple[int, int] = (128, 64),
    clutter_boxes: int = 4,
    occluder_share: float = 0.0,
    spoiled_share: float = 0.0,
) -> Triple:
    return draw_triple(
        np.random.default_rng(seed),
        Person.draw(np.random.default_rng(person)),
        Camera.draw(np.random.default_rng(2), size),
        clutter_boxes=clutter_boxes,
        occluder_share=occluder_share,
        spoiled_share=spoiled_share,
    )


BUILD = Build(
    head_width=0.06,
    shoulder=0.12,
    waist=0.1,
    hip=0.11,
    crotch=0.5,
    arm=0.035,
    thigh=0.055,
    shin=0.045,
    short_sleeves=True,
    bare_shins=False,
    long_hair=False,
    shoulder_bag=False,
    backpack=False,
)
UPRIGHT = Pose(
    height=1.0, crown=0.0, shift=0.0, flipped=False, from_behind=False, stride=0.0, swing=0.0, lean=0.0
)


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

    def test_default_counts(self) -> None:
        train, test = synthetic._splits(SyntheticSpec())
        assert (train.num_triples(SyntheticSpec()), test.num_triples(SyntheticSpec())) == (768, 256)
        assert not set(train.person_ids) & set(test.person_ids)

    def test_the_hard_set_has_twice_the_clutter_and_occlusion(self) -> None:
        easy, hard = asdict(DEFAULT_SPEC), asdict(HARD_SPEC)
        twice = {"clutter_boxes", "occluder_share"}
        assert {key for key in easy if hard[key] != easy[key]} == twice
        assert all(hard[key] == 2 * easy[key] for key in twice)

    def test_sets_of_other_names_stand_side_by_side(self, tmp_path: Path) -> None:
        more = replace(MINI, clutter_boxes=8)
        folders = ensure_synthetic(tmp_path, spec=MINI), ensure_synthetic(tmp_path, name="Hard", spec=more)
        assert folders == (tmp_path / "Synthetic", tmp_path / "Hard")
        easy, hard = (np.asarray(Image.open(min((f / "test" / "RGB").iterdir()))) for f in folders)
        assert not np.array_equal(easy, hard)

    def test_image_sizes_and_channels(self, mini: Path) -> None:
        for kind, channels in zip(KINDS, ("RGB", "L", "L", "1"), strict=True):
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
            ("clutter_boxes", -1),
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
            monkeypatch.setattr(synthetic, "GENERATOR_VERSION", synthetic.GENERATOR_VERSION + 1)
        spec = replace(MINI, clutter_boxes=9) if change == "spec" else MINI
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
            patch.setattr(synthetic, "_save", interrupted)
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

        monkeypatch.setattr(synthetic, "_save", interrupted)
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
        draw_all = synthetic._draw_all
        first: dict[Path, int] = {}

        def overtaken(folder: Path, seed: int, spec: SyntheticSpec) -> int:
            monkeypatch.setattr(synthetic, "_draw_all", draw_all)
            first.update(write_times(ensure_synthetic(tmp_path, seed=seed, spec=spec)))
            return draw_all(folder, seed, spec)

        monkeypatch.setattr(synthetic, "_draw_all", overtaken)
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
        draw_all = synthetic._draw_all

        def disturbed(drawn: Path, seed: int, spec: SyntheticSpec) -> int:
            (folder / "mine.txt").write_text("precious")
            return draw_all(drawn, seed, spec)

        monkeypatch.setattr(synthetic, "_draw_all", disturbed)
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


class TestDrawing:
    def test_body_in_numbers(self) -> None:
        """A body as tall as the image, upright in the middle: known parts at known places, in symmetry."""
        body = pose_body(BUILD, UPRIGHT, (100, 50))
        column = body.parts[:, 25]
        assert column[1] == Part.HAIR
        assert column[10] == Part.SKIN
        assert column[30] == Part.TORSO
        assert column[60] == Part.THIGHS
        np.testing.assert_array_equal(body.parts, body.parts[:, ::-1])
        # y = 0.405 (row 40), x = 0.145 (column 25 + 14): the forearm, bare below the short sleeve of row 25.
        assert body.parts[40, 39] == Part.SKIN
        assert body.parts[25, 38] == Part.SLEEVES
        # The feet stand at hip - thigh = 0.055 from the middle.
        assert body.parts[85, 30] == Part.SHINS
        assert body.parts[97, 30] == Part.SHOES
        assert not body.mask[:, 0].any()

    def test_scale_and_shift(self) -> None:
        small = pose_body(BUILD, replace(UPRIGHT, height=0.5, crown=0.25), (100, 50)).mask
        rows = np.flatnonzero(small.any(axis=1))
        assert (rows[0], rows[-1]) == (25, 74)
        shifted = pose_body(BUILD, replace(UPRIGHT, height=0.5, crown=0.25, shift=0.1), (100, 50)).mask
        # A pixel whose centre lies on an edge may fall on either side of it.
        assert (shifted[:, 5:] != small[:, :-5]).sum() < 10

    def test_flip_mirrors_a_bag(self) -> None:
        build = replace(BUILD, shoulder_bag=True)
        plain, flipped = (
            pose_body(build, replace(UPRIGHT, flipped=flip), (128, 64)).parts for flip in (False, True)
        )
        assert (plain != flipped).any()
        np.testing.assert_array_equal(plain, flipped[:, ::-1])

    def test_backpack_hides_the_torso_from_behind(self) -> None:
        build = replace(BUILD, backpack=True)
        views = [
            pose_body(build, replace(UPRIGHT, from_behind=behind), (100, 50)) for behind in (False, True)
        ]
        assert [view.parts[30, 25] for view in views] == [Part.TORSO, Part.BAG]
        assert [view.parts[10, 25] for view in views] == [Part.SKIN, Part.HAIR]

    def test_heat_and_reflectance_by_hand(self) -> None:
        """Thighs and a bag at y = 0.7: a spot at x = 0.1 with radius 0.05, a band round the legs only."""
        x = np.array([[0.0, 0.06, 0.1, 0.14]])
        parts = np.array([[Part.THIGHS, Part.THIGHS, Part.THIGHS, Part.BAG]])
        body = PosedBody(parts, x, np.full(x.shape, 0.7))
        levels = np.full((len(Part), 1), 0.5)
        heat = Heat(levels, spots=np.array([[0.1, 0.7, 0.05, 0.2], [0.0, 0.2, 0.05, 0.2]]))
        np.testing.assert_allclose(heat.paint(body)[0, :, 0], [0.5, 0.7, 0.7, 0.7])
        for band, level in [((0.65, 0.75), 0.9), ((0.5, 0.6), 0.5), ((0.8, 0.9), 0.5)]:
            surface = Reflectance(levels, motif=0, motif_level=0.1, band=band, band_level=0.9)
            np.testing.assert_allclose(surface.paint(body)[0, :, 0], [level, level, level, 0.5])

    def test_every_pose_shows_the_same_person(self) -> None:
        """Whatever the pose, the thighs have the heat of the person's own."""
        person = Person.draw(np.random.default_rng(3))
        surface = person.surfaces.ti
        bodies = [pose_body(person.build, Pose.draw(np.random.default_rng(s)), (128, 64)) for s in range(5)]
        seen = {float(np.median(surface.paint(body)[body.parts == Part.THIGHS])) for body in bodies}
        assert len(seen) == 1

    def test_mask_is_where_the_person_is(self) -> None:
        """Another person in the same scene changes pixels of the two masks and no others."""
        first, second = sample(5, person=1), sample(5, person=2)
        either = first.mask | second.mask
        for a, b in zip(first.images, second.images, strict=True):
            np.testing.assert_array_equal(a[~either], b[~either])
            assert (np.abs(a[either].astype(int) - b[either]) > 20).mean() > 0.2

    def test_clutter_lies_behind_the_person_and_elsewhere_in_each_modality(self) -> None:
        without, with_clutter = sample(clutter_boxes=0), sample(clutter_boxes=6)
        np.testing.assert_array_equal(without.mask, with_clutter.mask)
        places = []
        for a, b in zip(without.images, with_clutter.images, strict=True):
            np.testing.assert_array_equal(a[without.mask], b[without.mask])
            places.append((a != b).reshape(128, 64, -1).any(axis=-1))
            assert places[-1][~without.mask].mean() > 0.1
        assert (places[0] ^ places[1])[~without.mask].mean() > 0.1
        assert (places[1] ^ places[2])[~without.mask].mean() > 0.1

    def test_occluder_covers_the_same_pixels_in_all_modalities(self) -> None:
        for seed in range(10):
            free, covered = sample(seed), sample(seed, occluder_share=1.0)
            hidden = free.mask & ~covered.mask
            assert not (covered.mask & ~free.mask).any()
            assert 0.05 < hidden.sum() / free.mask.sum() < 0.7
            for a, b in zip(free.images, covered.images, strict=True):
                np.testing.assert_array_equal(a[covered.mask], b[covered.mask])
                # One flat value; what varies is the noise.
                assert b[hidden].std(axis=0).max() < 12

    def test_spoiling_changes_the_person_in_one_modality_only(self) -> None:
        hit = []
        for seed in range(20):
            clean, spoiled = sample(seed), sample(seed, spoiled_share=1.0)
            np.testing.assert_array_equal(clean.mask, spoiled.mask)
            pairs = list(zip(clean.images, spoiled.images, strict=True))
            (index,) = [i for i, (a, b) in enumerate(pairs) if (a != b).any()]
            hit.append(index)
            before, after = (image[clean.mask].astype(float) for image in pairs[index])
            assert np.abs(before - after).mean() > 15
        assert set(hit) == {0, 1, 2}

    @pytest.mark.parametrize(("occluder_share", "spoiled_share"), [(0.3, 0.0), (0.0, 0.3)])
    def test_shares_are_met(self, occluder_share: float, spoiled_share: float) -> None:
        """At 0.3, 30 of 100 samples are changed, give or take three deviations of 4.6."""
        draw = partial(sample, size=(32, 16))
        plain = [draw(seed) for seed in range(100)]
        changed = [
            draw(seed, occluder_share=occluder_share, spoiled_share=spoiled_share) for seed in range(100)
        ]
        count = sum(
            any((a != b).any() for a, b in zip(before.images, after.images, strict=True))
            for before, after in zip(plain, changed, strict=True)
        )
        assert 16 <= count <= 44

    def test_modalities_are_independent_of_each_other(self) -> None:
        """Over many people the torso's grey value tells nothing of its reflectance or heat."""
        people = [Person.draw(np.random.default_rng(s)) for s in range(400)]
        body = pose_body(people[0].build, Pose.draw(np.random.default_rng(0)), (32, 16))
        torso = np.array(
            [[s.paint(body)[body.parts == Part.TORSO].mean() for s in p.surfaces] for p in people]
        )
        correlations = np.corrcoef(torso, rowvar=False)[np.triu_indices(len(Modality), k=1)]
        assert np.abs(correlations).max() < 0.2
