"""Configuration → reports, and pictures of a run: the only file of this package that reads cfg."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from yacs.config import CfgNode

from reporting.extra import import_extra
from reporting.folder import ReportFolder
from reporting.report import About, ReportWriter
from reporting.watch import SelectionWatch, read_triples, spread_evenly
from structures import RetrievalSet

NUM_WATCHED = 8


def make_selection_watch(
    cfg: CfgNode, loader: DataLoader[Any], device: torch.device
) -> Callable[[nn.Module], dict[str, Tensor]]:
    """A function that draws which patches of a few triples a model keeps; nothing if it keeps all."""
    rows = spread_evenly(len(loader.dataset), NUM_WATCHED)  # type: ignore[arg-type]
    batch = read_triples(loader, rows).to(device)
    return SelectionWatch(batch, mean=cfg.INPUT.PIXEL_MEAN, std=cfg.INPUT.PIXEL_STD)


class Named(Protocol):
    """What a data set calls its cameras and scenes, by their ids, and its test triples."""

    @property
    def test(self) -> RetrievalSet:
        """The test triples."""

    @property
    def camera_names(self) -> Sequence[str]:
        """By camera id."""

    @property
    def scene_names(self) -> Sequence[str]:
        """By scene id."""


def make_report_writer(cfg: CfgNode, folder: ReportFolder, data: Named, commit: str) -> ReportWriter:
    """A writer for a report in `folder` on the model and the data that `cfg` names."""
    import_extra("sklearn.manifold")  # if it is missing, say so before the evaluation
    about = About(
        title=f"{_model_name(cfg)} on {cfg.DATASETS.NAMES}",
        dataset=cfg.DATASETS.NAMES,
        weights=cfg.TEST.WEIGHT,
        config=cfg.dump(),
        commit=commit,
        camera_names=data.camera_names,
        scene_names=data.scene_names,
        re_ranking=cfg.TEST.RE_RANKING == "yes",
        mean=cfg.INPUT.PIXEL_MEAN,
        std=cfg.INPUT.PIXEL_STD,
        modalities=data.test.modalities,
    )
    return ReportWriter(folder, about)


def _model_name(cfg: CfgNode) -> str:
    """The parts after the backbone: DeMo is HDM with ATMoE, and MODEL.USE_X switches on X."""
    parts = ["DeMo" if cfg.MODEL.ATM else "HDM"] if cfg.MODEL.HDM else []
    parts += [key.removeprefix("USE_") for key, on in cfg.MODEL.items() if key.startswith("USE_") and on]
    name = " + ".join(parts) or "Baseline"
    return f"{name}, slimmed," if cfg.MODEL.SLIM_LAYERS else name
