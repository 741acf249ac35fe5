"""The end of a run: the scores of the last and the best epoch on the test split, and metrics.json."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from engine.checkpoint import check_model, held_entries, open_checkpoint
from engine.files import save_arrays, save_json
from engine.run_folder import QUERY_SCORES
from engine.train import Trainer
from evaluation.loop import Evaluate, Model, raw_pixels
from evaluation.result import EvaluationResult, main_scores
from evaluation.tables import result_table
from structures import BEST_ON, LAST_EPOCH

logger = logging.getLogger(__name__)


def score_epochs(
    trainer: Trainer, result: EvaluationResult, test: Evaluate, untrained: nn.Module | None
) -> tuple[EvaluationResult, dict[str, dict[str, Any]]]:
    """Score the last epoch, the best one and the controls on the test split; all processes together.

    Where the epochs were evaluated on the test split, their scores are known already. Otherwise the test
    split is read here, for the first time, and the tested model ends with the weights of the best epoch. The
    main process saves the score of every query, for comparisons of runs.

    `result` is what the trainer's `run` has returned, `test` evaluates on the test split, and `untrained` is
    the model before training, or None for no controls.

    Returns:
        The last epoch, and all scores by name, as in `summary` of metrics.json.
    """

    def score(model: Model) -> EvaluationResult:
        return next(iter(test(model).values()))

    # The last and the best epoch.
    split, epochs = trainer.options.eval_split, trainer.progress.epochs
    if split == "test":
        last, evaluated = result, [record for record in epochs if split in record]
        chosen = max(evaluated, key=lambda record: main_scores(record[split])["mAP"])  # the first of equals
        best, epoch, mean_ap = chosen[split], chosen["epoch"], main_scores(chosen[split])["mAP"]
    else:
        last = score(trainer.tested)
        epoch, mean_ap = _load_best(trainer)
        best_result = score(trainer.tested)
        _save_query_scores(trainer, "best", best_result)
        best = best_result.as_dict()
    _save_query_scores(trainer, "last", last)
    summary = {
        LAST_EPOCH: {**last.as_dict(), "epoch": epochs[-1]["epoch"]},
        BEST_ON[split]: {**best, "epoch": epoch, f"{split}_mAP": mean_ap},
    }
    # The controls.
    if untrained is not None:
        summary["untrained"] = score(untrained.to(trainer.device)).as_dict()
        summary["raw pixels"] = score(raw_pixels).as_dict()
    return last, summary


def _save_query_scores(trainer: Trainer, checkpoint: str, result: EvaluationResult) -> None:
    if trainer.world.is_main:
        save_arrays(trainer.folder / QUERY_SCORES[checkpoint], result.query_arrays())


def _load_best(trainer: Trainer) -> tuple[int, float]:
    """Fill the tested model of every process from best.pth; returns the epoch and the mAP that chose it."""
    choice = (0, 0.0)
    if trainer.world.is_main:
        content = open_checkpoint(trainer.folder / "best.pth")
        weights = trainer.rename(content.get("model"))
        check_model(weights, held_entries(content, trainer.tested.state_dict(), trainer.frozen))
        trainer.tested.load_state_dict(weights, strict=False)
        choice = content["epoch"], content["chosen_mAP"]
    trainer.world.share(trainer.tested.state_dict().values())
    return trainer.world.gather_objects(choice)[0]


def write_metrics(
    trainer: Trainer,
    last: EvaluationResult,
    summary: Mapping[str, Mapping[str, Any]],
    cost: Mapping[str, Any] | None,
) -> None:
    """Log what `score_epochs` found; add it, the breakdown and the cost, if known, to metrics.json."""
    found = {"summary": summary, "breakdown": last.breakdown, **({} if cost is None else {"cost": cost})}
    save_json(trainer.folder / "metrics.json", {**trainer.progress.as_metrics(), **found})
    # The table, with a sentence on how the best epoch was chosen.
    split = trainer.options.eval_split
    best = summary[BEST_ON[split]]
    how = "chosen by this very score (DeMo's habit); DATASETS.VAL_IDS chooses without the test split"
    if split == "validation":
        mean_ap = best["validation_mAP"]
        how = f"chosen by {mean_ap:.1f} mAP on the identities that DATASETS.VAL_IDS holds out"
    others = {
        name if name in BEST_ON.values() else f"control: {name}": main_scores(scores)
        for name, scores in summary.items()
        if name != LAST_EPOCH
    }
    name = f"{BEST_ON[split]} (feature {max(last.ranking)})"
    table = f"{result_table(last, others)}\n{name}: epoch {best['epoch']}, {how}"
    logger.info("%s, all files in %s\n%s", LAST_EPOCH, trainer.folder, table)


def read_history(folder: Path) -> dict[str, Any]:
    """`epochs` and `summary` of the metrics.json in a folder; empty, with a warning, if it is strange."""
    path = folder / "metrics.json"
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text()) if path.is_file() else None
        epochs, summary = content["epochs"], content["summary"]  # type: ignore[index]
        _check_history(epochs, summary)
        return {"epochs": epochs, "summary": summary}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        logger.warning("%s is not the metrics.json of a finished run; training is not shown", path)
        return {}


def _check_history(epochs: Any, summary: Any) -> None:
    """Raise one of the errors that `read_history` expects, unless both are what `write_metrics` writes."""
    if not isinstance(epochs, list) or not isinstance(summary, dict):
        raise TypeError("epochs must be a list, and summary must have names")
    numbers = [epoch[name] for epoch in epochs for name in ("epoch", "loss", "accuracy")]
    found = [epoch[split] for epoch in epochs for split in BEST_ON if split in epoch]
    for scores in map(main_scores, [*found, *summary.values()]):
        numbers += [*scores.values(), scores["mAP"], scores["rank_1"]]
    if any(isinstance(number, bool) or not isinstance(number, int | float) for number in numbers):
        raise TypeError("metrics must be numbers")
