"""Version 2: bodies, clothes, views, cameras, and where people are."""

import io
from dataclasses import fields, replace

import matplotlib
import numpy as np
import pytest
from PIL import Image

from datasets.statistics import REAL, compare, describe_image, describe_placement, describe_set
from datasets.synthetic import ANYWHERE_SPEC, SyntheticSpec
from datasets.synthetic.body import Build, Part, Surface, View
from datasets.synthetic.clothes import Bag, Fabric, Headwear, Outfit, Pattern
from datasets.synthetic.draw import Person
from datasets.synthetic.figure import pose_figure
from datasets.synthetic.paint import Light, fabric_map, paint_heat, paint_light
from datasets.synthetic.palette import INFERNO, colour_of_heat
from datasets.synthetic.spec import ShotKey, Triple
from structures import Modality

SIZE = (256, 128)
FRONT = View(
    yaw=0.0, pitch=0.0, phase=0.0, energy=0.0, lean=0.0, height=240.0, top=8.0, centre=64.0, stretch=1.2
)
BACK, SIDE = replace(FRONT, yaw=np.pi), replace(FRONT, yaw=np.pi / 2)
BUILD = Build.draw(np.random.default_rng(1))
OUTFIT = replace(
    Outfit.draw(np.random.default_rng(2)),
    hem=0.5,
    opening=0.0,
    pattern=Pattern.PLAIN,
    skirt=0.0,
    leg=0.97,
    bag=Bag.NONE,
    headwear=Headwear.NONE,
    pocket=(False, False),
    scarf=False,
    leg_stripe=False,
    reflector=0.0,
)
CLEAN = SyntheticSpec(occluder_share=0.0, spoiled_share=0.0, company_share=0.0)
SMALL = replace(CLEAN, height=64, width=32)


def dressed(outfit: Outfit, view: View) -> tuple[Surface, np.ndarray]:
    surface = pose_figure(BUILD, outfit, view, SIZE)
    return surface, np.where(surface.mask, fabric_map(surface, outfit), 255)


def draw(spec: SyntheticSpec, index: int) -> Triple:
    return spec.draw(0, ShotKey(1 + index // 4, 1 + index % 2, index // 2 % 2))


class TestBody:
    def test_parts_from_top_to_bottom(self) -> None:
        """The body is 240 pixels tall from row 8: face at y = 0.08, torso at 0.3, legs below the crotch."""
        surface, _ = dressed(OUTFIT, FRONT)
        rows = {y: round(8 + 240 * y) for y in (0.08, 0.3, 0.985)}
        assert surface.part[rows[0.08], 64] == Part.HEAD
        assert surface.part[rows[0.3], 64] == Part.TORSO
        assert Part.SHOE in surface.part[rows[0.985]]
        occupied = np.flatnonzero(surface.mask.any(axis=1))
        assert abs(occupied[0] - 8) <= 4
        assert abs(occupied[-1] - 247) <= 4

    def test_a_body_that_stands_is_symmetric(self) -> None:
        mask = dressed(OUTFIT, FRONT)[0].mask
        assert (mask != mask[:, ::-1]).mean() < 0.01

    def test_a_stride_is_wide_from_the_side_and_narrow_from_the_front(self) -> None:
        feet = []
        for view in (FRONT, SIDE):
            walking = replace(view, phase=np.pi / 2, energy=1.0)
            part = pose_figure(BUILD, OUTFIT, walking, SIZE).part
            feet.append(np.ptp(np.flatnonzero((part == Part.SHOE).any(axis=0))))
        assert feet[1] > 1.5 * feet[0]

    def test_a_body_is_slimmer_from_the_side(self) -> None:
        torso = [(dressed(OUTFIT, view)[0].part[70:110] == Part.TORSO).sum() for view in (FRONT, SIDE)]
        assert torso[1] < 0.9 * torso[0]

    def test_the_outline_is_soft(self) -> None:
        coverage = dressed(OUTFIT, FRONT)[0].coverage
        assert ((coverage > 0.05) & (coverage < 0.95)).sum() > 100


class TestViews:
    def test_a_backpack_is_seen_from_behind_and_its_straps_from_the_front(self) -> None:
        outfit = replace(OUTFIT, bag=Bag.BACKPACK)
        (front, front_fabrics), (back, _) = (dressed(outfit, view) for view in (FRONT, BACK))
        centre = (slice(70, 90), slice(60, 68))
        assert (back.part[centre] == Part.BACKPACK).all()
        assert not (front.part[centre] == Part.BACKPACK).any()
        assert not (front_fabrics[centre] == Fabric.BAG).any()
        straps = front_fabrics[70, :] == Fabric.BAG
        assert straps[:64].any()
        assert straps[64:].any()

    def test_from_the_side_a_backpack_is_behind_the_back(self) -> None:
        """Turned by a quarter, the person looks to the right."""
        part = dressed(replace(OUTFIT, bag=Bag.BACKPACK), SIDE)[0].part
        columns = {p: np.nonzero(part == p)[1].mean() for p in (Part.BACKPACK, Part.TORSO)}
        assert columns[Part.BACKPACK] < columns[Part.TORSO] - 5

    @pytest.mark.parametrize(
        ("change", "fabric"),
        [({"opening": 0.04}, Fabric.INNER), ({"pattern": Pattern.FRONT_PRINT}, Fabric.TOP_PATTERN)],
    )
    def test_what_is_on_the_front_is_not_seen_from_behind(
        self, change: dict[str, object], fabric: Fabric
    ) -> None:
        outfit = replace(OUTFIT, **change)  # type: ignore[arg-type]
        seen = [(dressed(outfit, view)[1] == fabric).sum() for view in (FRONT, BACK)]
        assert seen[0] > 200
        assert seen[1] < 20

    def test_a_face_turns_into_hair(self) -> None:
        head = (slice(22, 32), slice(60, 68))
        assert (dressed(replace(OUTFIT, glasses=False), FRONT)[1][head] == Fabric.SKIN).all()
        assert (dressed(OUTFIT, BACK)[1][head] == Fabric.HAIR).all()

    def test_a_bag_stays_on_its_side(self) -> None:
        """On the person's side at positive x: to the right from the front, to the left from behind."""
        outfit = replace(OUTFIT, bag=Bag.TOTE, bag_side=1.0)
        columns = [np.nonzero(dressed(outfit, view)[0].part == Part.BAG)[1].mean() for view in (FRONT, BACK)]
        assert columns[0] > 80
        assert columns[1] < 48

    def test_fabrics_have_the_same_values_from_all_sides(self) -> None:
        flat = np.zeros(SIZE, np.float32)
        light = Light((0.0, 1.0), 0.5, flat, flat, hands=0.0, wear=0.0)
        seen = []
        for view in (FRONT, BACK, SIDE):
            surface, fabrics = dressed(OUTFIT, view)
            trousers = (fabrics == Fabric.BOTTOM) & (surface.facing > 0.9)
            painted = fabric_map(surface, OUTFIT)
            rgb, ni = paint_light(surface, painted, OUTFIT, light)
            heat = paint_heat(surface, painted, OUTFIT, light)
            seen.append([np.median(values[trousers]) for values in (rgb[..., 0], ni, heat)])
        np.testing.assert_allclose(seen[0], seen[1], rtol=0.1)
        np.testing.assert_allclose(seen[0], seen[2], rtol=0.1)

    def test_most_people_are_seen_from_the_front_by_one_family_and_from_behind_by_the_other(self) -> None:
        people = [Person.draw(np.random.default_rng(seed)) for seed in range(300)]
        share = np.mean([abs(a - b) > 3.0 for a, b in (person.heading for person in people)])
        assert 0.65 < share < 0.85


class TestClothes:
    def test_skin_is_warmer_than_cloth_and_bags_are_cold(self) -> None:
        tables = np.stack([Outfit.draw(np.random.default_rng(seed)).fabrics for seed in range(200)])
        heat = tables[..., 4]
        garments = heat[:, [Fabric.TOP, Fabric.INNER, Fabric.BOTTOM, Fabric.SHOE]]
        assert (heat[:, [Fabric.SKIN]] > garments).all()
        assert (heat[:, Fabric.BAG] < 0.35).all()

    def test_near_infrared_shows_what_rgb_hides(self) -> None:
        """Of the dark tops, many reflect near-infrared light; more than of the dark trousers."""
        tables = np.stack([Outfit.draw(np.random.default_rng(seed)).fabrics for seed in range(400)])
        shares = []
        for fabric in (Fabric.TOP, Fabric.BOTTOM):
            dark = tables[tables[:, fabric, :3].mean(axis=-1) < 0.15, fabric]
            shares.append((dark[:, 3] > 0.4).mean())
        assert 0.35 < shares[0] < 0.65
        assert 0.15 < shares[1] < 0.45

    def test_no_two_people_dress_alike(self) -> None:
        outfits = [Outfit.draw(np.random.default_rng(seed)) for seed in range(100)]
        looks = {tuple(np.round(outfit.fabrics[Fabric.TOP], 3)) for outfit in outfits}
        assert len(looks) == 100
        assert {field.name for field in fields(Outfit)} > {"bag", "hem", "pattern"}
        assert len({outfit.bag for outfit in outfits}) == len(Bag)

    def test_a_quilted_top_shows_its_seams(self) -> None:
        flat = np.zeros(SIZE, np.float32)
        light = Light((0.0, 1.0), 0.5, flat, flat, hands=0.0, wear=0.0)

        def column(outfit: Outfit) -> np.ndarray:
            surface, _ = dressed(outfit, FRONT)
            return paint_light(surface, fabric_map(surface, outfit), outfit, light)[1][75:115, 64]

        plain, quilted = column(replace(OUTFIT, quilt=0.0)), column(replace(OUTFIT, quilt=0.04))
        assert quilted.std() > plain.std()
        assert quilted.min() < 0.85 * plain.min()


class TestPalette:
    def test_it_is_inferno(self) -> None:
        expected = matplotlib.colormaps["inferno"](np.arange(256))[:, :3]
        np.testing.assert_allclose(INFERNO / 255.0, expected, atol=0.008)

    def test_thermal_images_are_in_its_colours(self) -> None:
        colours = {tuple(colour) for colour in INFERNO}
        assert {tuple(pixel) for pixel in draw(SMALL, 0).images.ti.reshape(-1, 3)} <= colours
        np.testing.assert_array_equal(colour_of_heat(np.array([[-1.0, 2.0]])), INFERNO[[[0, 255]]])


class TestSample:
    def test_the_mask_is_where_the_person_is(self) -> None:
        """The thermal image changes along the outline of the mask, and less beside it."""
        edges, beside = [], []
        for index in range(8):
            triple = draw(CLEAN, index)
            heat = np.asarray(Image.fromarray(triple.images.ti).convert("L")).astype(float)
            change = np.hypot(*np.gradient(heat))
            outline = np.hypot(*np.gradient(triple.mask.astype(float))) > 0
            edges.append(change[outline].mean())
            beside.append(np.roll(change, 14, axis=1)[outline].mean())
        assert np.mean(edges) > 1.8 * np.mean(beside)

    def test_an_occluder_hides_a_part_of_the_person(self) -> None:
        for index in range(10):
            free, covered = (draw(replace(SMALL, occluder_share=share), index) for share in (0.0, 1.0))
            assert not (covered.mask & ~free.mask).any()
            assert 0.01 < (free.mask & ~covered.mask).sum() / free.mask.sum() < 0.75

    def test_spoiling_changes_one_modality_only(self) -> None:
        hit = []
        for index in range(20):
            clean, spoiled = (draw(replace(SMALL, spoiled_share=share), index) for share in (0.0, 1.0))
            np.testing.assert_array_equal(clean.mask, spoiled.mask)
            pairs = list(zip(clean.images, spoiled.images, strict=True))
            (index_of,) = [i for i, (a, b) in enumerate(pairs) if (a != b).any()]
            hit.append(index_of)
        assert set(hit) == {0, 1, 2}

    def test_company_stands_at_the_border_and_is_not_in_the_mask(self) -> None:
        for index in range(10):
            alone, company = (draw(replace(SMALL, company_share=share), index) for share in (0.0, 1.0))
            assert not (company.mask & ~alone.mask).any()
            assert (company.mask.sum() / alone.mask.sum()) > 0.5

    def test_shares_are_met(self) -> None:
        """At 0.3, 30 of 100 samples are changed, give or take three deviations of 4.6."""
        spec = replace(SMALL, height=32, width=16)
        changed = 0
        for index in range(100):
            clean, some = (draw(replace(spec, spoiled_share=share), index) for share in (0.0, 0.3))
            changed += any((a != b).any() for a, b in zip(clean.images, some.images, strict=True))
        assert 16 <= changed <= 44

    def test_modalities_are_cut_a_little_differently(self) -> None:
        """The person's heat has its centre near that of the mask, but not always on it."""
        shifts = []
        for index in range(8):
            triple = draw(CLEAN, index)
            heat = np.asarray(Image.fromarray(triple.images.ti).convert("L")).astype(float)
            best = max(range(-10, 11), key=lambda shift: heat[np.roll(triple.mask, shift, axis=1)].mean())
            shifts.append(best)
        assert max(abs(shift) for shift in shifts) <= 8
        assert len(set(shifts)) > 1


class TestPlacement:
    def test_people_are_where_they_are_in_rgbnt201(self) -> None:
        masks = [draw(SMALL, index).mask for index in range(60)]
        centres = [np.nonzero(mask)[1].mean() / mask.shape[1] for mask in masks]
        assert min(centres) > 0.34
        assert max(centres) < 0.66
        assert 0.37 < np.mean(masks) < 0.52

    def test_anywhere_fixed_patch_indices_gain_little(self) -> None:
        """The best fixed indices gain at most 10 points over chance, though people are as large."""
        spec = replace(ANYWHERE_SPEC, height=32, width=16)
        anywhere = describe_placement(draw(spec, index).mask for index in range(300))
        usual = describe_placement(draw(SMALL, index).mask for index in range(60))
        assert anywhere.fixed - anywhere.chance < 0.10
        assert usual.fixed - usual.chance > 0.25
        assert anywhere.best > 0.65


class TestStatistics:
    def test_medians_are_close_to_the_real_ones(self) -> None:
        """Of 96 samples as they are stored; the real figures come from 128."""
        spec = SyntheticSpec()
        figures: dict[Modality, list] = {modality: [] for modality in Modality}
        for index in range(96):
            key = ShotKey(1 + index // 2, 1 + index % 2, index % spec.train_shots)
            for modality, image in zip(Modality, spec.draw(0, key).images, strict=True):
                file = io.BytesIO()
                Image.fromarray(image).save(file, "jpeg", quality=spec.jpeg_quality, subsampling=0)
                pixels = np.asarray(Image.open(file))
                figures[modality].append((f"cam{key.camera}", describe_image(pixels)))
        for modality, real in zip(Modality, REAL, strict=True):
            rows = compare(describe_set(figures[modality]), real)
            assert len(rows) == 9
            far = [f"{row.what}: {row.drawn:.3g}, real {row.real:.3g}" for row in rows if not row.close]
            assert not far, f"{modality.value}: {far}"
