"""Find the threshold for "same person": `python -m tools.calibrate WEIGHTS OUT.json --fmr 1e-3`.

Pairs of triples from different cameras (or scenes, as the data set is scored) are compared; of those of
different people, the given share may match. Every combination of modalities has a threshold of its own, since
distances shrink when images are missing. `Predictor.load(…, calibration="OUT.json").verify(a, b)` uses them.
"""

from __future__ import annotations

from engine.arguments import answer_early
from tools.arguments import calibrate_arguments

if __name__ == "__main__":
    answer_early(calibrate_arguments)  # --help, mistakes and Ctrl-C, before the slow imports

import argparse
import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import numpy as np
from tqdm import tqdm

from datasets.build import read_splits
from datasets.dataset import Records
from datasets.validation import GROUPS
from engine.build import make_device
from engine.command import run_command
from engine.files import check_destination, save_bytes, save_json
from engine.runtime import setup_log
from errors import UserError
from inference.calibration import Calibration, CalibrationError, PairsAcross, calibrate, name_modalities
from inference.predictor import Predictor, check_modalities, restrict, triple_of
from reporting.extra import import_extra
from reporting.figures import figure_files
from structures import ImageRecord, Modality, PerModality, missing_conditions
from trained import Trained, load_trained

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

ENDINGS = (".pdf", ".png")


def main(argv: Sequence[str] | None = None) -> None:
    """Embed the held-out identities, compare them, and write the thresholds."""
    # What to measure, of which model; mistakes are found before anything runs.
    args = calibrate_arguments(argv)
    if not 0 < args.fmr < 1:
        raise UserError(f"--fmr must be above 0 and below 1, not {args.fmr:g}")
    if args.output.suffix != ".json":  # the figure would replace OUT.png
        raise UserError(f"{args.output} does not end in .json; name OUT.json")
    check_destination(args.output, replaces=".json")
    if args.figure:
        import_extra("matplotlib")
        for ending in ENDINGS:
            check_destination(args.output.with_suffix(ending), replaces=ending)
    setup_log()
    trained = load_trained(args.weights, args.overrides, config_file=args.config_file)
    records, protocol = choose_records(args, trained)
    # A threshold for each combination of modalities.
    device = make_device(trained.cfg)
    predictor = Predictor.of(
        trained,
        args.weights,
        device=device,
        pattern=args.pattern,
        batch_size=args.batch_size,
        pca=args.pca,
    )
    found = measure_all(predictor, records, trained.model.modalities, GROUPS[protocol], args.fmr)
    # The result.
    assert predictor.origin is not None
    thresholds = {name: asdict(each) for name, each in found.items()}
    content = {"thresholds": thresholds, "wanted_rate": args.fmr, "split": args.split, "protocol": protocol}
    save_json(args.output, {**content, "origin": predictor.origin.as_dict()})
    complete = next(iter(found.values()))
    logger.info("%s\n%s", describe(complete), table_of(found))
    logger.info("wrote %s", args.output)
    if args.figure:
        for ending, picture in figure_files(draw(complete)).items():
            save_bytes(args.output.with_suffix(ending), picture)
            logger.info("wrote %s", args.output.with_suffix(ending))


def measure_all(
    predictor: Predictor,
    records: Records,
    used: Sequence[Modality],
    group_of: Callable[[ImageRecord], Hashable],
    rate: float,
) -> dict[str, Calibration]:
    """The threshold of each combination of modalities, by its name; that of all of them is the first.

    Each is measured on the triples that have all of these images. One that cannot be measured is left out,
    and the log says why; without that of all modalities, the error is the caller's.

    Args:
        predictor: embeds the triples.
        records: the triples to compare.
        used: the modalities of the model.
        group_of: the camera, or the scene; pairs of one group are left out.
        rate: the share of the pairs of different people that may match.
    """
    present = PerModality.build(lambda m: any(record.present.of(m) for record in records))
    check_modalities(present, used, "the data set")
    modalities = [m for m in used if present.of(m)]
    # The combinations, and the triples that have all images of each.
    chosen: dict[tuple[Modality, ...], list[ImageRecord]] = {}
    for missing in missing_conditions(modalities).values():
        left = tuple(m for m in modalities if m not in missing)
        chosen[left] = [record for record in records if all(record.present.of(m) for m in left)]
    found: dict[str, Calibration] = {}
    total = sum(map(len, chosen.values()))
    with tqdm(total=total, desc="embed", unit="triple", leave=False, disable=None) as bar:
        for left, own in chosen.items():
            name = name_modalities(left)
            pairs = PairsAcross.of(
                embed(predictor, own, left, bar),
                np.array([record.person_id for record in own]),
                number([group_of(record) for record in own]),
            )
            try:
                measured = calibrate(pairs, rate)
            except CalibrationError as error:
                if not found:
                    raise
                logger.warning("there is no threshold for %s: %s", name, error)
            else:
                found[name] = replace(measured, curve={}) if found else measured
    return found


def embed(
    predictor: Predictor, records: Sequence[ImageRecord], modalities: Sequence[Modality], bar: tqdm
) -> np.ndarray:
    """The descriptors of n triples of which these images are used, (n, D)."""
    triples = (restrict(triple_of(record), modalities) for record in records)
    features = [np.zeros((0, predictor.dim), np.float32)]
    for part in predictor.stream(triples):
        features.append(part.features.numpy())
        bar.update(len(part.indices))
    return np.concatenate(features)


def number(groups: Sequence[Hashable]) -> np.ndarray:
    """The groups as numbers, (n,), equal where they are equal."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(group, len(numbers)) for group in groups])


def choose_records(args: argparse.Namespace, trained: Trained) -> tuple[Records, str]:
    """The triples to compare, and the protocol of their data set."""
    if "DATASETS.VAL_IDS" in args.overrides[::2]:
        raise UserError(
            "DATASETS.VAL_IDS was fixed in training, which saw all other identities; leave it out"
        )
    if args.split == "test":
        logger.warning(
            "calibrating on the TEST split, as --split test asks: scores on the same images with this "
            "threshold are too good; report them as such"
        )
        splits, protocol = read_splits(trained.cfg, test_only=True, may_draw=False)
        return tuple(dict.fromkeys((*splits.query, *splits.gallery))), protocol
    if not trained.cfg.DATASETS.VAL_IDS:
        raise UserError(
            f"{args.weights} held out no identities in training (DATASETS.VAL_IDS is 0); train with "
            "DATASETS.VAL_IDS N, or add --split test to use the test split"
        )
    splits, protocol = read_splits(trained.cfg, may_draw=False)
    if len({record.person_id for record in splits.train}) != trained.split.classes:
        raise UserError(
            f"{args.weights} was trained on {trained.split.classes} identities, which are not those of the "
            "data set here, so the ones held out are not known; give the data set that it was trained on"
        )
    return splits.validation, protocol


def describe(found: Calibration) -> str:
    """The threshold and its rates, in words."""

    def show(rate: float, interval: tuple[float, float]) -> str:
        return f"{rate:.2e} (95 % interval {interval[0]:.2e} to {interval[1]:.2e})"

    return (
        f"{found.identities} identities; two triples match at a distance of {found.threshold:.4f} or less\n"
        f"false-match rate {show(found.false_match_rate, found.false_match_interval)} of "
        f"{found.pairs_of_different_people} pairs of different people\n"
        f"false-non-match rate {show(found.false_non_match_rate, found.false_non_match_interval)} of "
        f"{found.pairs_of_one_person} pairs of one person"
    )


def table_of(found: Mapping[str, Calibration]) -> str:
    """One line for each combination of modalities: its threshold and both rates."""
    lines = [f"{'modalities':<12}{'threshold':>10}{'false-match':>14}{'false-non-match':>18}"]
    for name, each in found.items():
        rates = f"{each.false_match_rate:>14.2e}{each.false_non_match_rate:>18.2e}"
        lines.append(f"{name:<12}{each.threshold:>10.4f}{rates}")
    return "\n".join(lines)


def draw(found: Calibration) -> Figure:
    """The curve: false-non-match rate against false-match rate, with the chosen threshold."""
    figure: Figure = import_extra("matplotlib.figure").Figure(figsize=(4.8, 3.6), layout="constrained")
    axes = figure.subplots()
    matches, misses = (np.array(found.curve[f"false_{kind}_rate"]) for kind in ("match", "non_match"))
    smallest = 1 / found.pairs_of_different_people
    axes.plot(np.maximum(matches, smallest), misses, linewidth=1)
    axes.plot(max(found.false_match_rate, smallest), found.false_non_match_rate, "ko", markersize=4)
    axes.set(xscale="log", xlabel="false-match rate", ylabel="false-non-match rate", ylim=(0, 1))
    axes.set_title(f"threshold {found.threshold:.3f}, {found.identities} identities", fontsize=9)
    axes.grid(alpha=0.3)
    return figure


if __name__ == "__main__":
    run_command(main)
