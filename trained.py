"""A trained model from its checkpoint: the configuration inside the file is the starting point."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from yacs.config import CfgNode

from config import ConfigError, get_cfg, list_differences, load_config, merge_settings, stored_config
from datasets.build import TrainingSplit, find_training_split, stored_modalities
from engine.checkpoint import describe_choice
from modeling.checkpoint_file import WeightsError
from modeling.make_model import make_model
from modeling.reid_model import MultiModalReID
from modeling.weights import ModelFile, add_trunk, fill_model, read_model

logger = logging.getLogger(__name__)

WEIGHTS, CONFIG, CARD = "model.safetensors", "config.yml", "README.md"
"""The files of a model folder, which `tools.export` writes."""
ORIGIN = ("format", "data", "epoch", "chosen_on", "chosen_mAP", "progress")
"""The entries of a checkpoint that say where its weights come from."""


@dataclass(frozen=True)
class Trained:
    """A trained model and what belongs to it."""

    cfg: CfgNode  # the configuration in the checkpoint, with what the caller overrides
    model: MultiModalReID  # with its weights, on the CPU
    split: TrainingSplit  # what the model was built for, so that `build_test_data` numbers the cameras alike
    choice: str  # which epoch the weights are of, and how it was chosen; empty if the checkpoint cannot say
    origin: Mapping[str, Any]  # what the checkpoint says of its run, of the entries in `ORIGIN`
    differences: Sequence[str]  # what the caller overrides and can change the result

    @property
    def initial_weights(self) -> str:
        """What its training started from: a file, or `random`; empty if the checkpoint cannot say."""
        progress = self.origin.get("progress")
        return str(progress.get("initial_weights", "")) if isinstance(progress, Mapping) else ""


def find_weights(config_file: str | Path | None, overrides: Sequence[str], remedy: str) -> str:
    """The checkpoint that TEST.WEIGHT names in the overrides or the file; `remedy` is the message if none."""
    weights: str = merge_settings(get_cfg(), config_file, overrides).TEST.WEIGHT
    if not weights:
        raise ConfigError(remedy)
    return weights


def load_trained(
    checkpoint: str | Path,
    overrides: Sequence[str] = (),
    *,
    config_file: str | Path | None = None,
    allow_partial: bool = False,
) -> Trained:
    """Build the model that a checkpoint holds, and fill it; the training images are not needed.

    The configuration in the checkpoint comes first, then `config_file`, then `overrides`. What differs from
    the checkpoint and can change features or scores is logged.

    Args:
        checkpoint: a file of ours, of DeMo or of the first SDTPS prototype; or a model folder.
        overrides: `KEY VALUE …`.
        config_file: a YAML file; needed for a checkpoint without a configuration, such as DeMo's.
        allow_partial: load what fits even if entries are missing or left over.
    """
    file = read_model(weight_file_of(checkpoint))
    content = dict(file.content) if isinstance(file.content, Mapping) else {}
    if file.path != Path(checkpoint):
        content["config"] = _read_text(Path(checkpoint) / CONFIG)
    overrides = ["TEST.WEIGHT", str(checkpoint), *overrides]
    cfg, differences = _make_config(content, file.path, config_file, overrides)
    data = content.get("data")
    split = _guess_split(file, cfg) if data is None else _read_split(data, file)
    with torch.random.fork_rng(devices=[]):  # the random state is the caller's
        torch.default_generator.manual_seed(cfg.SOLVER.SEED)  # what a partial file lacks is always the same
        model = make_model(cfg, *split.sizes, modalities=split.modalities)
    fill_model(model, add_trunk(model, file, cfg.MODEL.PRETRAIN_PATH_T), allow_partial=allow_partial)
    origin = {name: content[name] for name in ORIGIN if name in content}
    return Trained(cfg, model, split, describe_choice(content), origin, differences)


def weight_file_of(checkpoint: str | Path) -> Path:
    """The file with the weights: that of a model folder, or the checkpoint itself."""
    inside = Path(checkpoint) / WEIGHTS
    return inside if inside.is_file() else Path(checkpoint)


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise ConfigError(f"{path}, which belongs to {WEIGHTS} beside it, cannot be read: {reason}") from None


def _make_config(
    content: Mapping[str, Any], path: str | Path, config_file: str | Path | None, overrides: Sequence[str]
) -> tuple[CfgNode, list[str]]:
    """The configuration in the checkpoint with what the caller overrides; what differs is also logged."""
    if "config" not in content:
        if config_file is None:
            raise ConfigError(
                f"{path} holds no configuration (nor do DeMo's checkpoints and safetensors); add "
                "--config_file with the settings that it was trained with"
            )
        return load_config(config_file, overrides), []
    trained = stored_config(content["config"], path)
    here = get_cfg().MODEL  # the device of the machine that trained it is not that of this one
    trained.MODEL.DEVICE, trained.MODEL.DEVICE_ID = here.DEVICE, here.DEVICE_ID
    cfg = load_config(config_file, overrides, start=trained)
    if differences := list_differences(trained, cfg):
        listed = "\n  ".join(differences)
        logger.warning("overrides of the configuration in %s that can change the result:\n  %s", path, listed)
    return cfg, differences


def _read_split(stored: Any, file: ModelFile) -> TrainingSplit:
    """The entry `data` of a checkpoint."""
    try:
        cameras, scenes = tuple(stored["cameras"]), tuple(stored["scenes"])
        split = TrainingSplit(stored["classes"], cameras, scenes, stored_modalities(stored))
        numbers = (split.classes, *split.cameras, *split.scenes)
        are_numbers = all(type(number) is int and number >= 0 for number in numbers)
        if are_numbers and split.classes in (file.num_classes, max(file.num_classes, 1)):
            return split
    except (KeyError, TypeError, IndexError, ValueError):
        pass
    raise WeightsError(f"checkpoint {file.path} is damaged: its entry `data` cannot be read")


def _guess_split(file: ModelFile, cfg: CfgNode) -> TrainingSplit:
    """What a model without the entry `data` was built for, as its tensors and the training images tell."""
    classes, rows = max(file.num_classes, 1), file.num_embeddings
    by_camera, by_scene = cfg.MODEL.SIE_CAMERA, cfg.MODEL.SIE_VIEW
    if not (by_camera or by_scene):
        return TrainingSplit(classes, (), ())
    # The training split, if it has as many cameras and scenes as there are embeddings.
    found = find_training_split(cfg)
    if not rows:  # the model gets an embedding, and the file is refused for the lack of it
        return found or TrainingSplit(classes, (0,), (0, 1))
    if found is not None:
        sizes = (len(found.cameras) if by_camera else 1) * (max(found.num_views, 1) if by_scene else 1)
        if sizes == rows:
            return TrainingSplit(classes, found.cameras, found.scenes)
    # Otherwise in the order of their numbers.
    if by_camera and by_scene:
        raise WeightsError(
            f"{file.path} does not say which cameras and scenes its {rows} embeddings are of; put the "
            "training split that it was trained on beside the test split"
        )
    kind = "camera" if by_camera else "scene"
    logger.warning(
        f"{file.path} does not say which {kind}s its {rows} embeddings are of, and the training split is not "
        f"there or another: the first is taken for the first {kind}, and so on"
    )
    numbers = tuple(range(rows))
    return TrainingSplit(classes, numbers if by_camera else (), numbers if by_scene else ())
