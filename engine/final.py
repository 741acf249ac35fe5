"""The end of a run: what the last and the best epoch reach on the test split."""

from __future__ import annotations

from torch import nn

from engine.checkpoint import check_model, open_checkpoint
from engine.evaluate import Evaluation, raw_pixels
from engine.results import EvaluationResult, FinalScores, main_scores
from engine.train import Trainer


def score_epochs(
    trainer: Trainer, result: EvaluationResult, test: Evaluation, untrained: nn.Module | None
) -> FinalScores:
    """Score the last epoch, the best one and the controls on the test split; all processes together.

    Where the epochs were evaluated on the test split, they are known already. Otherwise the test split is
    looked at here, for the first time, and the model ends with the weights of the best epoch.

    Args:
        trainer: after `run`.
        result: what `run` has returned.
        test: scores a model on the test split.
        untrained: the model before training; None for no controls.
    """
    split = trainer.options.eval_split
    last = result if split == "test" else test(trainer.model)
    breakdown = test.evaluator.breakdown()
    if split == "test":
        evaluated = [record for record in trainer.progress.epochs if split in record]
        chosen = max(evaluated, key=lambda record: main_scores(record[split])["mAP"])  # the first of equals
        best, epoch, score = chosen[split], chosen["epoch"], main_scores(chosen[split])["mAP"]
    else:
        epoch, score = _load_best(trainer)
        best = test(trainer.model).as_dict()
    controls = {}
    if untrained is not None:
        controls = {"untrained": test(untrained.to(trainer.device)), "raw pixels": test(raw_pixels)}
    return FinalScores(last, breakdown, controls, best, epoch, chosen_on=split, chosen_by=score)


def _load_best(trainer: Trainer) -> tuple[int, float]:
    """Fill the model of every process from best.pth; returns the epoch and the mAP that chose it."""
    choice = (0, 0.0)
    if trainer.world.is_main:
        content = open_checkpoint(trainer.folder / "best.pth")
        check_model(content.get("model"), trainer.model.state_dict())
        trainer.model.load_state_dict(content["model"])
        choice = content["epoch"], content["chosen_mAP"]
    trainer.world.share(trainer.model.state_dict().values())
    return trainer.world.gather_objects(choice)[0]
