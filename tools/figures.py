"""Draw figures for a paper: `python -m tools.figures --weights runs/…/best.pth [KEY VALUE …]`.

Ranked lists, selection maps (with SDTPS or slimming) and attention maps of some queries, each as PDF and PNG.
"""

from __future__ import annotations

from engine.arguments import answer_early
from tools.arguments import FIGURE_KINDS, figures_arguments

if __name__ == "__main__":
    answer_early(figures_arguments)  # --help, mistakes and Ctrl-C, before the slow imports

import argparse
import difflib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from yacs.config import CfgNode

from config import ConfigError, get_cfg
from datasets.build import EvaluationData, build_test_data
from datasets.dataset import MultiModalDataset
from engine.build import make_device
from engine.command import run_command
from engine.files import check_destination, make_folder, save_bytes
from engine.runtime import setup_log
from errors import UserError
from evaluation.build import find_conditions, make_evaluate
from modeling.backbone.attention import attention_rollout
from reporting.extra import import_extra
from reporting.figures import ENDINGS, RankCell, draw_maps, draw_ranks, figure_files
from reporting.pictures import (
    Maps,
    attention_maps,
    denormalise,
    selection_maps,
    whiten_absent,
    without_absent,
)
from reporting.watch import read_triples, spread_evenly
from structures import MISSING_CONDITIONS, ImageRecord, ModalBatch, PerModality
from trained import find_weights, load_trained

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

WIDTHS = (2.0, 30.0)  # inches


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; `overrides` includes those that follow a list."""
    args = figures_arguments(argv)
    for option in ("kind", "queries"):
        words = getattr(args, option) or []
        end = next((i for i, word in enumerate(words) if _is_key(word)), len(words))
        setattr(args, option, words[:end])
        args.overrides = [*words[end:], *args.overrides]
    _check(args)
    return args


def _is_key(word: str) -> bool:
    """Whether a word begins the overrides: argparse gives a list all that follows it."""
    section, _, key = word.partition(".")
    return word == "OUTPUT_DIR" or (key.isupper() and section in get_cfg())


def _check(args: argparse.Namespace) -> None:
    if wrong := [kind for kind in args.kind if kind not in FIGURE_KINDS]:
        raise UserError(f"--kind {wrong[0]} is unknown; choose from {', '.join(FIGURE_KINDS)}")
    for option in ("count", "top"):
        if getattr(args, option) < 1:
            raise UserError(f"--{option} must be 1 or more, not {getattr(args, option)}")
    if not WIDTHS[0] <= args.width <= WIDTHS[1]:
        raise UserError(f"--width must be from {WIDTHS[0]:g} to {WIDTHS[1]:g} inches, not {args.width:g}")
    if args.queries and args.hardest:
        raise UserError("--queries and --hardest contradict each other; give one of them")


def find_queries(wanted: Sequence[str], records: Sequence[ImageRecord], query_rows: np.ndarray) -> list[int]:
    """The indices of the wanted queries among all queries.

    Args:
        wanted: file names, with or without ending, or rows.
        records: all test triples, by row.
        query_rows: the row of each query.
    """
    index_of = {str(row): index for index, row in enumerate(query_rows)}
    names = [records[row].name for row in query_rows]
    for index, name in enumerate(names):  # a name is never taken for a row
        index_of |= {name: index, Path(name).stem: index}
    for word in wanted:
        if word not in index_of:
            near = ", ".join(difflib.get_close_matches(word, names, n=3, cutoff=0.0))
            raise UserError(
                f"no query is called {word!r}; nearest are {near}; or give a row, from "
                f"{min(query_rows)} to {max(query_rows)}"
            )
    return [index_of[word] for word in wanted]


def choose_kinds(wanted: Sequence[str], *, selects: bool, is_slimmed: bool) -> list[str]:
    """The figures to draw; those that the model does not have are an error only if they are asked for."""
    impossible = {}
    if not selects:
        impossible["selection"] = "this model keeps every patch, without MODEL.USE_SDTPS and the like"
    if is_slimmed:
        impossible["attention"] = (
            "rollout follows every patch through all blocks; set MODEL.SLIM_LAYERS [] to see it"
        )
    for kind, reason in impossible.items():
        if kind in wanted:
            raise ConfigError(f"--kind {kind}: {reason}")
        if not wanted:
            logger.info("no %s maps: %s", kind, reason)
    return [kind for kind in FIGURE_KINDS if kind in (wanted or FIGURE_KINDS) and kind not in impossible]


class TriplePictures:
    """The test triples by row, as the model sees them and as pictures.

    Args:
        cfg: a configuration.
        data: its data.
        device: of the model.
    """

    def __init__(self, cfg: CfgNode, data: EvaluationData, device: torch.device) -> None:
        dataset = data.test.loader.dataset
        assert isinstance(dataset, MultiModalDataset)
        self.records = dataset.records
        self._loader = data.test.loader
        self._device = device
        self.modalities = data.test.modalities
        self._missing = MISSING_CONDITIONS[find_conditions(cfg, data.test.modalities)[0]]
        self._normalisation = cfg.INPUT.PIXEL_MEAN, cfg.INPUT.PIXEL_STD

    def batch(self, rows: Sequence[int]) -> ModalBatch:
        """The triples at these rows; missing modalities are zeros."""
        return read_triples(self._loader, rows).to(self._device).without(self._missing)

    def images(self, batch: ModalBatch) -> PerModality[Tensor]:
        """The images of a batch before normalisation, each (B, 3, H, W); missing ones are white."""
        shown = batch.images.map(lambda images: denormalise(images, *self._normalisation))
        return PerModality(*map(whiten_absent, shown, batch.present))

    def pictures(self, rows: Sequence[int]) -> np.ndarray:
        """(number of rows, number of modalities, H, W, 3)."""
        images = self.images(self.batch(rows))
        shown = torch.stack([images.of(m) for m in self.modalities], dim=1)
        return shown.permute(0, 1, 3, 4, 2).numpy()


def rank_cells(
    triples: TriplePictures, query_row: int, rows: np.ndarray, distances: np.ndarray
) -> list[RankCell]:
    """One ranked list with its query in front.

    Args:
        triples: the test triples.
        query_row: the query.
        rows: (top,) the nearest triples, -1 where there are no more.
        distances: (top,).
    """
    found = rows[rows >= 0].tolist()
    ids = [triples.records[row].person_id for row in (query_row, *found)]
    query, *others = triples.pictures([query_row, *found])
    return [
        RankCell(query, f"id {ids[0]}"),
        *(
            RankCell(pictures, f"id {person} · {distance:.2f}", is_positive=person == ids[0])
            for pictures, person, distance in zip(others, ids[1:], distances, strict=False)
        ),
    ]


def choose_pattern(wanted: int | None, available: Sequence[int]) -> int:
    """The return pattern to rank by: the wanted one, or the last."""
    if wanted is not None and wanted not in available:
        known = ", ".join(map(str, available))
        raise UserError(f"--pattern {wanted} is not a return pattern of this model; choose from {known}")
    return max(available) if wanted is None else wanted


def main(argv: Sequence[str] | None = None) -> None:
    """Read the configuration and the weights, choose the queries, and draw."""
    # What to draw, of which model; mistakes are found before anything runs.
    args = parse_arguments(argv)
    import_extra("matplotlib")  # if it is missing, say so before the model runs
    remedy = "there is nothing to draw without weights; add --weights runs/…/best.pth"
    weights = args.weights or find_weights(args.config_file, args.overrides, remedy)
    setup_log()
    trained = load_trained(
        weights, args.overrides, config_file=args.config_file, allow_partial=args.allow_partial
    )
    cfg, model = trained.cfg, trained.model
    kinds = choose_kinds(args.kind, selects=model.selects, is_slimmed=bool(cfg.MODEL.SLIM_LAYERS))
    for kind in kinds:
        for ending in ENDINGS:
            check_destination(args.output / f"{kind}{ending}", replaces=ending, makes_folder=True)
    # The queries.
    device = make_device(cfg)
    data = build_test_data(cfg, trained.split)
    model.to(device).eval()
    triples = TriplePictures(cfg, data, device)
    chosen = find_queries(args.queries, triples.records, data.test.query_rows)
    chosen = chosen or spread_evenly(len(data.test.query_rows), args.count)
    # The ranked lists.
    figures: dict[str, Figure] = {}
    if "ranks" in kinds or args.hardest:
        (result,) = make_evaluate(cfg, data.test, device)(model).values()
        pattern = choose_pattern(args.pattern, list(result.ranking))
        precisions = result.ranking[pattern].average_precisions
        if args.hardest:
            chosen = precisions.argsort()[: args.count].tolist()  # NaN, without a positive, comes last
        for query in chosen:
            name = triples.records[data.test.query_rows[query]].name
            logger.info("query %s: AP %.1f (return pattern %d)", name, 100 * precisions[query], pattern)
    rows = data.test.query_rows[chosen].tolist()
    if "ranks" in kinds:
        lists = result.rank_lists(args.top)[pattern]
        nearest = zip(rows, lists.items[chosen], lists.distances[chosen], strict=True)
        cells = [rank_cells(triples, *found) for found in nearest]
        figures["ranks"] = draw_ranks(cells, width=args.width, modalities=triples.modalities)
    # The maps.
    batch = triples.batch(rows)
    images, names = triples.images(batch), [Path(name).stem for name in batch.names]
    maps: dict[str, Maps] = {}
    if "selection" in kinds:
        with torch.no_grad():
            selection = model(batch).selection
        assert selection is not None
        maps["selection"] = selection_maps(images, selection, triples.modalities)
    if "attention" in kinds:
        rollout = attention_rollout(model, batch)
        maps["attention"] = attention_maps(images, rollout, model.backbone.grid, triples.modalities)
    for kind, found in maps.items():
        figures[kind] = draw_maps(without_absent(found, batch.present), names, width=args.width)
    # The files.
    make_folder(args.output)
    for kind, figure in figures.items():
        files = {args.output / f"{kind}{ending}": content for ending, content in figure_files(figure).items()}
        for path, content in files.items():
            save_bytes(path, content)
        logger.info("wrote %s", " and ".join(map(str, files)))


if __name__ == "__main__":
    run_command(main)
