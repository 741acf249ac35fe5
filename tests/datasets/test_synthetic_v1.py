"""Version 1: its drawing, and that it has not changed."""

import hashlib
from dataclasses import asdict, replace
from functools import partial

import numpy as np
import pytest

from datasets.synthetic import HARD_SPEC_V1, SpecV1
from datasets.synthetic.spec import ShotKey, Triple
from datasets.synthetic.v1.body import Build, Part, Pose, PosedBody, pose_body
from datasets.synthetic.v1.person import Heat, Person, Reflectance
from datasets.synthetic.v1.scene import Camera, draw_triple
from structures import Modality


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


class TestSpec:
    def test_counts(self) -> None:
        splits = [split for split, _ in SpecV1().samples()]
        assert (splits.count("train_171"), splits.count("test")) == (768, 256)

    def test_the_hard_set_has_twice_the_clutter_and_occlusion(self) -> None:
        easy, hard = asdict(SpecV1()), asdict(HARD_SPEC_V1)
        twice = {"clutter_boxes", "occluder_share"}
        assert {key for key in easy if hard[key] != easy[key]} == twice
        assert all(hard[key] == 2 * easy[key] for key in twice)

    def test_negative_clutter_is_refused(self) -> None:
        with pytest.raises(ValueError, match="clutter_boxes"):
            SpecV1(clutter_boxes=-1)

    def test_the_pixels_are_those_of_the_first_release(self) -> None:
        """Results on version 1 stay comparable: 65 is the first test identity."""
        triple = SpecV1().draw(0, ShotKey(65, 2, 1))
        digest = hashlib.sha256(b"".join(image.tobytes() for image in triple.images)).hexdigest()
        assert digest.startswith("cb7e57162ffcf8af")


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
