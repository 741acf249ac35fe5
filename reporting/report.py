"""Evaluation results → a folder that opens in a browser, from disk and without internet.

docs/evaluation.md describes the files; reporting/page/ shows them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tqdm import tqdm

from evaluation.any_to_any import AnyToAny
from evaluation.result import EvaluationResult
from reporting.folder import ReportFolder
from reporting.summary import (
    any_to_any_data,
    breakdown_data,
    cell_id,
    control_data,
    cost_data,
    feature_maps,
    ranking_data,
    result_data,
    sample_data,
    selection_data,
    training_data,
)
from reporting.triples import describe_selections, make_strips, source_names, thumbnail_size
from structures import ModalBatch, Modality, ModelOutput

LIST_LENGTH = 20  # gallery triples shown for a query


@dataclass(frozen=True)
class About:
    """What the report says of the model and of the data, besides the results."""

    title: str
    dataset: str
    weights: str  # the checkpoint
    config: str  # as YAML
    commit: str  # of this project
    camera_names: Sequence[str]  # by camera id, as the data set names them
    scene_names: Sequence[str]  # by scene id, likewise
    re_ranking: bool
    mean: Sequence[float]  # of the normalisation of the images, one value per channel
    std: Sequence[float]
    modalities: tuple[Modality, ...] = tuple(Modality)  # that the test triples have; others are not shown


class ReportWriter:
    """Writes a report: `observe` each batch of the evaluation, then `finish`.

    Nothing is visible under the final name before `finish`. An earlier report there is replaced.

    Args:
        folder: where the report will be.
        about: the model and the data.
    """

    def __init__(self, folder: ReportFolder, about: About) -> None:
        self.about = about
        self._folder = folder
        self._num_triples = 0
        self._image_size = (0, 0)
        self._grid: tuple[int, int] | None = None
        self._sources: dict[str, list[str]] | None = None
        self._has_tokens = False

    def observe(self, batch: ModalBatch, outputs: Mapping[str, ModelOutput]) -> None:
        """Write the thumbnails and the selections of a batch; batches come in the order of the test triples.

        Args:
            batch: complete, B triples.
            outputs: by missing-modality condition.
        """
        first = self._num_triples
        self._num_triples += len(batch)
        self._image_size = thumbnail_size(*batch.images.rgb.shape[-2:])
        images = [batch.images.of(modality) for modality in self.about.modalities]
        for row, strip in enumerate(make_strips(images, self.about.mean, self.about.std), first):
            self._folder.write_image(row, strip)
        selection = next(iter(outputs.values())).selection
        if selection is not None:
            self._grid = selection.grid
            self._sources = source_names(selection, self.about.modalities)
            self._has_tokens = selection.weights is not None
            for row, content in enumerate(
                describe_selections(outputs, len(batch), self.about.modalities), first
            ):
                self._folder.write_data(f"triples/{row}", content)

    def finish(
        self,
        results: Mapping[str, EvaluationResult],
        *,
        cost: Mapping[str, Any] | None,
        history: Mapping[str, Any],
        any_to_any: AnyToAny | None = None,
    ) -> Path:
        """Write the rest and put the report into place.

        Args:
            results: by missing-modality condition. The first is shown first.
            cost: plain numbers, as in metrics.json; None if it is not known.
            history: `epochs` and `summary` of the metrics.json of training, and `choice`: which epoch the
                weights are of, in words; each only where it is known.
            any_to_any: the matrix, if it was asked for.

        Returns:
            The page to open.
        """
        # The ranked lists.
        bar = tqdm(results.items(), desc="report", unit="condition", leave=False, disable=None)
        for condition, result in bar:
            for pattern, lists in result.rank_lists(LIST_LENGTH).items():
                content = ranking_data(result.ranking[pattern], lists)
                self._folder.write_data(f"ranking_{condition}_{pattern}", content)
        matrix = None if any_to_any is None else self._write_cells(any_to_any)
        # What the page shows at once.
        main = next(iter(results.values()))
        summary = {
            "title": self.about.title,
            "dataset": self.about.dataset,
            "weights": self.about.weights,
            "choice": history.get("choice", ""),
            "config": self.about.config,
            "re_ranking": self.about.re_ranking,
            "protocol": main.samples.triples.protocol,
            "created": datetime.now().strftime("%Y-%m-%d %H:%M"),
            "commit": self.about.commit,
            "modalities": [modality.value for modality in self.about.modalities],
            "image": dict(zip(("height", "width"), self._image_size, strict=True)),
            "grid": self._grid,
            "sources": self._sources,
            "has_tokens": self._has_tokens,
            **result_data({condition: result.ranking for condition, result in results.items()}),
            "any_to_any": matrix,
            "selection": None if main.selection is None else selection_data(main.selection),
            **sample_data(main, self.about.camera_names, self.about.scene_names),
            "breakdown": breakdown_data(main, self.about.camera_names),
            "feature_map": feature_maps(main),
            "controls": control_data(history.get("summary", {})),
            "training": training_data(history.get("epochs", [])),
            "cost": None if cost is None else cost_data(cost["parts"]),
        }
        self._folder.write_data("summary", summary)
        return self._folder.publish()

    def _write_cells(self, matrix: AnyToAny) -> dict[str, Any]:
        """Write the ranked lists of each different cell; returns what the page shows of the matrix."""
        content = any_to_any_data(matrix)
        files = {cell.get("ranking") for cell in content["cells"]}
        bar = tqdm(matrix.cells.items(), desc="report", unit="cell", leave=False, disable=None)
        for sides, metrics in bar:
            if metrics is not None and (name := cell_id(*sides)) in files:
                lists = matrix.rank_lists(*sides, LIST_LENGTH)
                self._folder.write_data(f"ranking_any_{name}", ranking_data(metrics, lists))
        return content
