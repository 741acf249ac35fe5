"""A model folder, as model hubs expect it: weights, configuration, and a card that says what they are."""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from safetensors.torch import save as safetensors_bytes
from yacs.config import CfgNode

from datasets.sources import SOURCES
from engine.files import check_destination, make_folder, save_bytes, save_text
from engine.final import read_history
from errors import UserError
from evaluation.result import PATTERN, scores_by_pattern
from modeling.checkpoint_file import RECORD
from modeling.cost import CostReport, measure_cost
from structures import BEST_ON, LAST_EPOCH, RETURN_PATTERNS
from trained import CARD, CONFIG, WEIGHTS, Trained

logger = logging.getLogger(__name__)

PROTOCOL_TEXTS = {
    "camera": "gallery triples of the query's identity and camera are dropped",
    "scene": "gallery triples of the query's identity and scene are dropped",
    "none": "only the query itself is dropped",
}
METRICS = ("mAP", "mINP", "rank_1", "rank_5", "rank_10")


def check_folder(folder: Path) -> None:
    """Refuse a folder that holds something, or that cannot be made."""
    if folder.is_dir() and not folder.is_symlink():
        if any(folder.iterdir()):
            raise UserError(f"the folder {folder} is not empty; name another one or remove it")
        return
    check_destination(folder, makes_folder=True)


def write_model_folder(folder: Path, trained: Trained, run_folder: Path, *, digest: str) -> None:
    """Write the weights, the configuration and the card; the folder appears when all are complete.

    Args:
        folder: must be empty or not exist.
        trained: the model.
        run_folder: where the checkpoint is; the scores in its metrics.json are used if they are of it.
        digest: SHA-256 of the checkpoint.
    """
    # The three files.
    state = {name: tensor.contiguous() for name, tensor in trained.model.state_dict().items()}
    metadata = {"format": "pt", RECORD: json.dumps(_record(trained))}
    scores = find_scores(trained, run_folder)
    if isinstance(scores, str):
        logger.warning("the card has no scores: %s", scores)
    card = write_card(folder.absolute().name, trained, scores, measure_cost(trained.model), digest=digest)
    cfg = trained.cfg.clone()
    cfg.defrost()
    cfg.TEST.WEIGHT = ""
    # In a folder of another name, which then gets its own.
    make_folder(folder.absolute().parent)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".tmp", dir=folder.absolute().parent))
    try:
        scratch.chmod(0o777 & ~_umask())
        save_bytes(scratch / WEIGHTS, safetensors_bytes(state, metadata))
        save_text(scratch / CONFIG, cfg.dump())
        save_text(scratch / CARD, card)
        os.replace(scratch, folder)
    except OSError as error:
        raise UserError(f"the folder {folder} cannot be written: {error.strerror}") from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def _record(trained: Trained) -> dict[str, Any]:
    """What a checkpoint says beside its weights and configuration, as far as testing needs it."""
    record = dict(trained.origin)
    split = trained.split
    data = {"classes": split.classes, "cameras": split.cameras, "scenes": split.scenes}
    record["data"] = {**record.get("data", {}), **data}
    if "progress" in record:
        record["progress"] = {"epoch": record["progress"].get("epoch")}
    return record


def find_scores(trained: Trained, run_folder: Path) -> Mapping[str, Any] | str:
    """The scores that metrics.json in the run folder has for this checkpoint; why not, if it has none.

    They are used only if the file is that of the run: its epochs, or the mAP that chose the epoch, must be
    those in the checkpoint. With settings that change the scores they are not used.
    """
    origin, history = trained.origin, read_history(run_folder)
    if trained.differences:
        return f"they were measured with other settings than {'; '.join(trained.differences)}"
    if not history:
        return (
            "there was no metrics.json beside the checkpoint when the folder was written; tools.export finds "
            "them if the checkpoint is in its run folder"
        )
    summary = history["summary"]
    if "progress" in origin:
        is_same, found = origin["progress"].get("epochs") == history["epochs"], summary.get(LAST_EPOCH)
    else:
        chosen_on = str(origin.get("chosen_on"))
        found = summary.get(BEST_ON.get(chosen_on, ""), {})
        is_same = found.get("epoch") == origin.get("epoch") and "epoch" in found
        is_same = is_same and found.get(f"{chosen_on}_mAP") == origin.get("chosen_mAP")
    if found and is_same:
        return dict(found)
    return "metrics.json beside the checkpoint is of another run or epoch, or the run has not ended"


def write_card(
    name: str, trained: Trained, scores: Mapping[str, Any] | str, cost: CostReport, *, digest: str
) -> str:
    """The card: a header in YAML for the hub, then data, scores, cost, use and licence for the reader.

    Args:
        name: of the model.
        trained: the model.
        scores: what `find_scores` gave.
        cost: of the model.
        digest: SHA-256 of the checkpoint.
    """
    cfg = trained.cfg
    source = SOURCES.get(cfg.DATASETS.NAMES)
    is_drawn = source is not None and source.draw is not None
    # Licence: the weights of a real data set follow its terms.
    licence, terms = (
        {"license": "mit"},
        "The data set is drawn by the code, so that code and weights are MIT.",
    )
    if not is_drawn:
        licence = {"license": "other", "license_name": "terms-of-the-data-set"}
        terms = (
            f"The code is MIT. The weights were trained on {cfg.DATASETS.NAMES}: read its terms, and "
            "those of the pre-trained weights, before you use or publish them."
        )
    header = {
        **licence,
        "library_name": "demo-sdtps",
        "pipeline_tag": "image-feature-extraction",
        "tags": ["person-re-identification", "multi-modal", "rgb", "near-infrared", "thermal"],
        "datasets": [cfg.DATASETS.NAMES],
        **(
            {}
            if isinstance(scores, str)
            else {"metrics": ["mAP", "rank-1"], "model-index": _index(name, cfg, scores)}
        ),
    }
    height, width = cfg.INPUT.SIZE_TEST
    total = cost.total
    sections = {
        "": f"# {name}\n\n{cfg.MODEL.NAME}: RGB, near-infrared and thermal images → one descriptor.",
        "Use": (
            "```python\nfrom inference import Predictor, Triple  # in a checkout of DeMo-SDTPS\n\n"
            f'predictor = Predictor.load("{name}")\n'
            'features = predictor.embed([Triple("a_rgb.jpg", "a_ni.jpg", "a_ti.jpg")])\n```'
        ),
        "Data": (
            f"Trained on {cfg.DATASETS.NAMES}: {trained.split.classes} identities"
            f"{_cameras(trained)}. Images of {height} x {width} pixels.{_fingerprints(trained)}"
        ),
        "Scores": _score_table(cfg, trained, scores),
        "Cost": (
            f"{total.parameters / 1e6:.2f} M parameters, {total.multiply_adds / 1e9:.2f} G multiply-adds for "
            f"one triple, backbone {cfg.MODEL.TRANSFORMER_TYPE}."
        ),
        "Files": (
            f"`{WEIGHTS}` and `{CONFIG}`, from a checkpoint with SHA-256 `{digest}`"
            f"{f' ({trained.choice})' if trained.choice else ''}, {_start(trained)}."
        ),
        "Licence": terms,
    }
    text = "\n\n".join(f"## {title}\n\n{body}" if title else body for title, body in sections.items())
    return f"---\n{yaml.safe_dump(header, sort_keys=False, allow_unicode=True)}---\n\n{text}\n"


def _cameras(trained: Trained) -> str:
    count = len(trained.split.cameras)
    return f", {count} cameras" if count else ""


def _fingerprints(trained: Trained) -> str:
    """Which version of the data set it was: names alone do not say."""
    found = trained.origin.get("data", {}).get("fingerprints", {})
    listed = ", ".join(f"{split} `{digest[:16]}`" for split, digest in found.items())
    return f" Fingerprints of its files: {listed}." if listed else ""


def _start(trained: Trained) -> str:
    """What training started from, as far as the checkpoint says."""
    progress = trained.origin.get("progress", {})
    start, digest = progress.get("initial_weights"), progress.get("initial_sha256")
    if not start:
        return "which does not say what training started from"
    return f"trained from {start}{f' (SHA-256 `{digest}`)' if digest else ' weights'}"


def _index(name: str, cfg: CfgNode, scores: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The results as hubs read them: those of the last return pattern."""
    *_, (pattern, found) = scores_by_pattern(scores).items()
    title = RETURN_PATTERNS[int(pattern.removeprefix(PATTERN))]
    result = {
        "task": {"type": "image-feature-extraction", "name": "Multi-modal person re-identification"},
        "dataset": {"type": cfg.DATASETS.NAMES, "name": cfg.DATASETS.NAMES, "split": "test"},
        "metrics": [
            {"type": metric, "name": f"{metric} ({title})", "value": round(found[metric], 2)}
            for metric in METRICS
            if metric in found
        ],
    }
    return [{"name": name, "results": [result]}]


def _score_table(cfg: CfgNode, trained: Trained, scores: Mapping[str, Any] | str) -> str:
    """The scores of each return pattern, with the protocol."""
    if isinstance(scores, str):
        return f"No scores: {scores}. `python test_net.py TEST.WEIGHT THIS_FOLDER` measures them."
    # How they were measured.
    source = SOURCES.get(cfg.DATASETS.NAMES)
    by_pattern = scores_by_pattern(scores)
    queries = next(iter(by_pattern.values())).get("queries")
    how = [
        f"Test split of {cfg.DATASETS.NAMES}, {queries} queries",
        "k-reciprocal re-ranking" if scores.get("re_ranked") else "no re-ranking",
        *([PROTOCOL_TEXTS[source.protocol]] if source is not None else []),
        *([] if cfg.TEST.MISS == "nothing" else [f"without the modalities {cfg.TEST.MISS}"]),
    ]
    # The table.
    lines = [f"| return pattern | {' | '.join(METRICS)} |", f"|{' --- |' * (1 + len(METRICS))}"]
    for pattern, found in by_pattern.items():
        title = RETURN_PATTERNS[int(pattern.removeprefix(PATTERN))]
        cells = [f"{found[metric]:.1f}" if metric in found else "–" for metric in METRICS]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    choice = f" The weights: {trained.choice}." if trained.choice else ""
    return f"{'; '.join(how)}.{choice}\n\n" + "\n".join(lines)
