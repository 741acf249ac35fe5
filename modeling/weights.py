"""Weights of several origins -> our model. Nothing is skipped silently."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from timm.layers import resample_abs_pos_embed
from torch import Tensor, nn

from modeling.backbone.trunk import BILINEAR, Resize, Trunk
from modeling.checkpoint_file import WeightsError, find_tensors, read_content
from modeling.checkpoint_names import (
    DEMO_CLIP_RULES,
    DEMO_VIT_RULES,
    EDITOR_RULES,
    SIGNAL_RULES,
    rename,
    why_unused,
    with_current_names,
)
from modeling.pretrained import FROM_TIMM, fetch, identify_trunk, to_timm_names
from modeling.reid_model import MultiModalReID
from weight_file import TRUNK_FILE, hash_file

logger = logging.getLogger(__name__)

CHECKOUT = Path(__file__).parents[1]

TRUNK = "backbone.vit."
"""Prefix of the entries that are the trunk."""

TUNING = "backbone.tuning."
"""Prefix of the entries that are adapters or LoRA."""

CAMERA_EMBEDDING = "backbone.camera_embed"
"""The entry with a row for each camera, scene, or pair of both."""

CLASSIFIER = "classifier.weight"
"""Ending of the entries that tell identities apart."""

PER_IDENTITY = (CLASSIFIER, "_centers")
"""Endings of the entries whose shape depends on the number of identities; only training uses them."""

WHOLE_MODELS = ("ours", "demo", "editor", "signal")
"""Origins of files that hold more than a backbone."""


@dataclass
class LoadReport:
    """What became of each entry."""

    loaded: list[str] = field(default_factory=list)  # of the model, filled as they are
    resized: list[str] = field(default_factory=list)  # of the model, resized to its grid
    dropped: list[str] = field(default_factory=list)  # of the file, left out on purpose, with the reason
    missing: list[str] = field(default_factory=list)  # of the model, not in the file; unchanged
    unexpected: list[str] = field(default_factory=list)  # of the file, not in the model

    def summary(self) -> str:
        """The counts, then the first few entries of every list but `loaded`."""
        counts = ", ".join(f"{len(entries)} {name}" for name, entries in vars(self).items())
        others = [(name, entries) for name, entries in vars(self).items() if entries and name != "loaded"]
        return counts + "".join(f"\n  {name}: {shorten(entries)}" for name, entries in others)


def shorten(names: Sequence[str], limit: int = 5) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def identify(state: Mapping[str, Tensor]) -> str | None:
    """`ours`, `demo` (or the first SDTPS), `editor`, `signal`, a trunk (`identify_trunk`), or None."""
    if any(name.startswith(TRUNK) for name in state):
        return "ours"
    if any(name.startswith("BACKBONE.") for name in state):
        return "editor" if any(name.startswith("FUSE_block.") for name in state) else "demo"
    if any(name.startswith("clip_vision_encoder.") for name in state):
        return "signal"
    return identify_trunk(state)


def to_our_names(state: dict[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """Translate the entries of a whole model, ours or another's; returns also the names that no rule fits."""
    origin = identify(state)
    if origin == "editor":
        return rename(state, EDITOR_RULES["AL_HEAD.weight" in state])
    if origin == "signal":
        return rename(state, SIGNAL_RULES)
    if origin != "demo":
        return with_current_names(state), []
    is_clip = "BACKBONE.base.class_embedding" in state
    return rename(state, DEMO_CLIP_RULES if is_clip else DEMO_VIT_RULES)


def to_demo_names(state: dict[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """The inverse of `to_our_names`, for a model of ours."""
    is_clip = "backbone.vit.norm_pre.weight" in state
    return rename(state, DEMO_CLIP_RULES if is_clip else DEMO_VIT_RULES, to_ours=False)


@dataclass(frozen=True)
class ModelFile:
    """A whole model in a file."""

    path: str | Path
    origin: str  # one of `WHOLE_MODELS`
    state: dict[str, Tensor]  # the entries, under our names
    unknown: list[str]  # the names of entries that have no name here
    content: Any = None  # all that the file holds

    @property
    def num_classes(self) -> int:
        """Identities that its classifiers tell apart; 0 if it has none."""
        return max((_length(t) for name, t in self.state.items() if name.endswith(CLASSIFIER)), default=0)

    @property
    def num_embeddings(self) -> int:
        """Rows of its camera embedding; 0 if it has none."""
        return _length(self.state[CAMERA_EMBEDDING]) if CAMERA_EMBEDDING in self.state else 0


def _length(tensor: Tensor) -> int:
    return tensor.shape[0] if tensor.dim() else 0


def trunk_entries(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The entries of the trunk in a model of ours."""
    return {name: tensor for name, tensor in state.items() if name.startswith(TRUNK)}


def read_any(path: str | Path, *, key: str = "") -> tuple[str, dict[str, Tensor], Any]:
    """Read a weight file that the setting `key` names; returns what `recognise` does, and all it holds."""
    content = read_content(path, key=key)
    if _lacks_trunk(content):
        return "ours", find_tensors(content, path), content
    return *recognise(find_tensors(content, path), path), content


def _lacks_trunk(content: Any) -> bool:
    """Whether the content of a checkpoint of ours names another file that holds its trunk."""
    return isinstance(content, Mapping) and isinstance(content.get(TRUNK_FILE), Mapping)


def recognise(whole: dict[str, Tensor], path: str | Path) -> tuple[str, dict[str, Tensor]]:
    """Where entries come from, and the entries; a prefix that all of them share is taken off."""
    state = whole
    while (origin := identify(state)) is None:
        prefixes = {name.partition(".")[0] for name in state if "." in name}
        if len(prefixes) != 1 or not all("." in name for name in state):
            raise WeightsError(
                f"{path} holds no weights that are known here: CLIP, DINOv2, DINOv3, EVA-02, a timm ViT, "
                f"DeMo, EDITOR, Signal or ours; it starts with {shorten(list(whole), 3)}"
            )
        state = {name.partition(".")[2]: tensor for name, tensor in state.items()}
    logger.info("%s: weights of %s%s", path, origin, "" if state is whole else ", below a common prefix")
    return origin, state


def read_model(path: str | Path) -> ModelFile:
    """Read a whole model (TEST.WEIGHT): of ours, of DeMo, of the first SDTPS, of EDITOR or of Signal."""
    origin, state, content = read_any(path, key="TEST.WEIGHT")
    if origin not in WHOLE_MODELS:
        raise WeightsError(
            f"{path} holds a backbone, not a whole model; give it as MODEL.PRETRAIN_PATH_T to train_net.py"
        )
    return ModelFile(path, origin, *to_our_names(state), content)


def start_from(model: MultiModalReID, path: str, *, allow_partial: bool = False) -> dict[str, Any]:
    """Fill a model for training from a file, if one is named; returns what the run keeps of its start."""
    if not path:
        return {"initial_weights": "random"}
    name, found = _find_file(model, path)
    load_pretrained(model, found, allow_partial=allow_partial)
    return {"initial_weights": name, "initial_sha256": hash_file(found)}


def check_start(path: str) -> None:
    """Refuse a file for `start_from` that does not exist, or a folder."""
    if path and path != FROM_TIMM and not (found := _find_path(path)).exists():
        read_content(found, key="MODEL.PRETRAIN_PATH_T")  # which says what to do


def _find_file(model: MultiModalReID, path: str) -> tuple[str, Path]:
    """The name of a weight file, and where it is, perhaps after fetching it."""
    return fetch(model.backbone.vit) if path == FROM_TIMM else (path, _find_path(path))


def _find_path(path: str) -> Path:
    """Where a weight file is: as named, or in the checkout, which may be elsewhere; a folder is refused."""
    if Path(path).is_dir():
        example = Path(path, "model.safetensors")
        raise WeightsError(
            f"MODEL.PRETRAIN_PATH_T: {path} is a folder; name the file in it, such as {example}"
        )
    return CHECKOUT / path if not Path(path).exists() and (CHECKOUT / path).is_file() else Path(path)


def frozen_entries(model: MultiModalReID) -> frozenset[str]:
    """The entries of the trunk that do not learn."""
    named = model.named_parameters()
    return frozenset(n for n, parameter in named if n.startswith(TRUNK) and not parameter.requires_grad)


def describe_trunk_file(
    model: MultiModalReID, start: Mapping[str, Any], *, allow_partial: bool
) -> dict[str, str]:
    """The file that holds all that is frozen in a model, for its checkpoints; empty if there is none.

    Args:
        model: as `start_from` has filled it.
        start: what that returned.
        allow_partial: as given to it; a file that fits in part does not hold all.
    """
    if not frozen_entries(model):
        return {}
    if "initial_sha256" in start and not allow_partial:
        return {"path": start["initial_weights"], "sha256": start["initial_sha256"]}
    if start["initial_weights"] == "random":
        logger.warning("MODEL.TUNE freezes weights that are random: set MODEL.PRETRAIN_PATH_T")
    logger.warning("the checkpoints hold the frozen trunk as well, since no weight file is known to hold it")
    return {}


def find_trunk_file(model: MultiModalReID, checkpoint: str | Path, trunk: Any, path: str) -> Path:
    """The trunk file of a checkpoint; one that is missing or another than in training is refused.

    Args:
        model: whose trunk it is.
        checkpoint: its name, for the message.
        trunk: its entry `TRUNK_FILE`.
        path: MODEL.PRETRAIN_PATH_T, where it is now; empty for where it was in training.
    """
    if not isinstance(trunk, Mapping) or not all(isinstance(trunk.get(n), str) for n in ("path", "sha256")):
        raise WeightsError(f"checkpoint {checkpoint} is damaged: its entry `{TRUNK_FILE}` cannot be read")
    path, wanted = path or trunk["path"], trunk["sha256"]
    _, found = _find_file(model, path)
    digest = hash_file(found) if found.is_file() else ""
    if digest != wanted:
        fault = f"is another file ({digest[:12]}…)" if digest else "does not exist"
        raise WeightsError(
            f"{checkpoint} holds only what was tuned, and its trunk file {path} (SHA-256 {wanted[:12]}…) "
            f"{fault}; put it there, or add MODEL.PRETRAIN_PATH_T FILE"
        )
    return found


def add_trunk(model: MultiModalReID, file: ModelFile, path: str) -> ModelFile:
    """The content of a checkpoint that holds only what was tuned, with the trunk from its file.

    Args:
        model: its trunk is filled.
        file: the checkpoint; one that holds the whole model is returned as it is.
        path: MODEL.PRETRAIN_PATH_T; see `find_trunk_file`.
    """
    if not _lacks_trunk(file.content):
        return file
    load_pretrained(model, find_trunk_file(model, file.path, file.content[TRUNK_FILE], path))
    own = model.state_dict()
    frozen = {name: own[name] for name in frozen_entries(model)}
    return replace(file, state={**frozen, **file.state})


def load_pretrained(model: MultiModalReID, path: str | Path, *, allow_partial: bool = False) -> LoadReport:
    """Fill a model for training (MODEL.PRETRAIN_PATH_T).

    The file may hold a trunk, as its authors or timm publish it, or a whole model to start from. Classifiers
    of another number of identities keep their initial values.
    """
    origin, state, content = read_any(path, key="MODEL.PRETRAIN_PATH_T")
    if _lacks_trunk(content):
        raise WeightsError(
            f"MODEL.PRETRAIN_PATH_T: {path} holds only what was tuned; write the whole model with "
            f"`python -m tools.export {path} FOLDER`, and name FOLDER/model.safetensors"
        )
    if origin == "ours" and all(name.startswith(TRUNK) for name in state):
        origin, state = "vit", {name.removeprefix(TRUNK): tensor for name, tensor in state.items()}
    elif origin in WHOLE_MODELS:
        whole = ModelFile(path, origin, *to_our_names(state))
        if not any(
            name.startswith(TUNING) for name in whole.state
        ):  # then they are new, and stay as they are
            new = {name: t for name, t in model.state_dict().items() if name.startswith(TUNING)}
            whole = replace(whole, state={**whole.state, **new})
        return fill_model(model, whole, allow_partial=allow_partial)
    backbone = model.backbone
    file = to_timm_names(origin, state, backbone.vit, projection=backbone.is_clip)
    report = LoadReport(dropped=file.dropped, unexpected=file.unknown)
    return _fill(
        backbone.vit, file.state, report, path=path, trunk=backbone.trunk, allow_partial=allow_partial
    )


def fill_model(model: MultiModalReID, file: ModelFile, *, allow_partial: bool = False) -> LoadReport:
    """Fill a whole model.

    Entries for another number of identities are left out: testing does not use them. More missing or any
    unexpected entry is an error, unless `allow_partial`.
    """
    report = LoadReport()
    for name in file.unknown:
        reason = why_unused(name)
        (report.dropped if reason else report.unexpected).append(f"{name} ({reason})" if reason else name)
    state, own = dict(file.state), model.state_dict()
    for name in [n for n in state if n.endswith(PER_IDENTITY) and n in own]:
        if state[name].shape != own[name].shape:
            report.dropped.append(f"{name} (for {_length(state[name])} ids, the model has {len(own[name])})")
            del state[name]
    path, trunk, optional = file.path, model.backbone.trunk, PER_IDENTITY
    return _fill(model, state, report, path=path, trunk=trunk, allow_partial=allow_partial, optional=optional)


def _fill(
    module: nn.Module,
    state: Mapping[str, Tensor],
    report: LoadReport,
    *,
    path: str | Path,
    trunk: Trunk,
    allow_partial: bool,
    optional: tuple[str, ...] = (),
) -> LoadReport:
    """Fill a module with the entries of a file, position embeddings resized, and complete the report.

    A file that does not fit is refused and leaves the module as it was. Entries whose names end as `optional`
    says may be missing.
    """
    own = module.state_dict()
    accepted: dict[str, Tensor] = {}
    misfit = f"{path} does not fit this configuration"
    # Take the entries one by one.
    for name, tensor in state.items():
        if name not in own:
            report.unexpected.append(name)
            continue
        found, wanted = tensor, own[name]
        try:
            tensor = _to_grid_of(trunk, name, found, wanted)
            fault = _find_fault(name, tensor, wanted)
        except WeightsError as error:
            fault = str(error)
        if fault:
            if not allow_partial:
                same_shape = tensor.shape == wanted.shape
                remedy = "" if same_shape else "; use the configuration that it was trained with"
                raise WeightsError(f"{misfit}: {fault}{remedy}")
            report.dropped.append(f"({fault})")
            continue
        accepted[name] = tensor
        if tensor.shape == found.shape:
            report.loaded.append(name)
        else:
            shapes = f"{tuple(found.shape)} to {tuple(tensor.shape)}"
            report.resized.append(f"{name} {shapes}, {trunk.position_resize.words}")
    report.missing += [name for name in own if name not in accepted]
    # Judge the file as a whole.
    missing = [name for name in report.missing if not name.endswith(optional)]
    if not report.loaded:
        raise WeightsError(f"no entry of {path} fits this model; it is of another architecture")
    if (missing or report.unexpected) and not allow_partial:
        own_branch = any(name.startswith("branches.") for name in report.unexpected)
        script = ", or the script that registers its branch (docs/extending.md)" if own_branch else ""
        faults = {"missing": missing, "unexpected": report.unexpected}
        listed = ", ".join(
            f"{kind}: {len(rest)} ({shorten(rest, 3)})" for kind, rest in faults.items() if rest
        )
        raise WeightsError(
            f"{misfit}: entries {listed}; use the configuration it was trained with{script}, or add "
            "--allow_partial to load what fits"
        )
    module.load_state_dict(accepted, strict=False)
    logger.info("weights from %s: %s", path, report.summary())
    return report


def _to_grid_of(trunk: Trunk, name: str, found: Tensor, wanted: Tensor) -> Tensor:
    """An entry of the file, resized if it is a position embedding of another grid."""
    other_grid = found.shape != wanted.shape and found.shape[::2] == wanted.shape[::2]
    if not (name.endswith("pos_embed") and other_grid and found.is_floating_point()):
        return found
    num_prefix = wanted.shape[1] - trunk.grid[0] * trunk.grid[1]
    return resize_position_embedding(found, trunk.grid, num_prefix=num_prefix, how=trunk.position_resize)


def _find_fault(name: str, tensor: Tensor, own: Tensor) -> str:
    """Why an entry of the file does not fit the model's; floating-point numbers of any precision do."""
    if tensor.dtype != own.dtype and not (tensor.is_floating_point() and own.is_floating_point()):
        held, needed = (str(dtype).removeprefix("torch.") for dtype in (tensor.dtype, own.dtype))
        return f"{name} holds {held} values, the model needs {needed}"
    if tensor.shape != own.shape:
        return f"{name} has shape {tuple(tensor.shape)}, the model needs {tuple(own.shape)}"
    return ""


def resize_position_embedding(
    embedding: Tensor, grid: tuple[int, int], *, num_prefix: int = 1, how: Resize = BILINEAR
) -> Tensor:
    """Resize a position embedding to another grid.

    The old grid is not in the file. It is taken to be square, or else to have the proportions of the new one,
    or else those of a person (2:1) or, for a wide grid, of a vehicle (1:2).

    Args:
        embedding: (1, num_prefix + rows * columns, C).
        grid: rows and columns wanted.
        num_prefix: positions in front that do not belong to patches, such as the class token's.
        how: the kind of interpolation.
    """
    count = embedding.shape[1] - num_prefix
    for ratio in (1.0, grid[0] / grid[1], 2.0 if grid[0] > grid[1] else 0.5):
        rows = round((max(count, 0) * ratio) ** 0.5)
        if rows and count % rows == 0 and rows / (count // rows) == ratio:
            break
    else:
        raise WeightsError(
            f"the grid of a position embedding with {count} patches cannot be told; prefix tokens may differ"
        )
    old = [rows, count // rows]
    return resample_abs_pos_embed(
        embedding,
        list(grid),
        old,
        num_prefix_tokens=num_prefix,
        interpolation=how.mode,
        antialias=how.antialias,
    )
