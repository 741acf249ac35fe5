"""One pass over the distinct test images, for one or several settings of missing modalities."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import nn
from tqdm import tqdm

from engine.distributed import World
from engine.results import EvaluationResult
from evaluation.evaluator import RetrievalEvaluator
from structures import MISSING_SETTINGS, HeadOutput, ModalBatch, Modality, ModelOutput, Role

PIXEL_BLOCK = 8  # side of the blocks that the raw-pixel control averages

Outputs = Mapping[str, ModelOutput]
"""What the model gave for one batch, by the name of the setting."""


class SettingsModel(Protocol):
    """A model that can be asked for several settings of missing modalities at once."""

    def forward_settings(
        self, batch: ModalBatch, settings: Mapping[str, Sequence[Modality]]
    ) -> dict[str, ModelOutput]:
        """By setting, what the model gives for the batch without the modalities that miss in it."""


def evaluate(
    model: Callable[[ModalBatch], ModelOutput],
    *,
    loader: Iterable[ModalBatch],
    evaluator: RetrievalEvaluator,
    device: torch.device,
    missing: Sequence[Modality] = (),
    world: World | None = None,
    check_stop: Callable[[], None] = lambda: None,
) -> EvaluationResult:
    """Encode each test triple once, in float32, and score the result.

    Args:
        model: makes a `ModelOutput` of a batch. A module is put into evaluation mode and then back.
        loader: the distinct test triples; with several processes, this one's block of them.
        evaluator: collects and scores.
        device: where the batches go.
        missing: modalities whose images are replaced by zeros.
        world: the processes of the run; all of them get the whole result.
        check_stop: called when this process has encoded its triples; may raise to stop the evaluation.
    """
    with _evaluation_mode(model):
        (result,) = _evaluate(
            lambda batch: {"": model(batch.without(missing))},
            loader=loader,
            evaluators={"": evaluator},
            device=device,
            world=world or World(),
            check_stop=check_stop,
        ).values()
    return result


@dataclass(frozen=True)
class Evaluation:
    """`evaluate`, short of the model; the attributes are its arguments.

    Attributes:
        loader: of the triples.
        evaluator: after a call, it knows more than the call returns.
        device: where the batches go.
        missing: modalities whose images are replaced by zeros.
        world: the processes of the run.
    """

    loader: Iterable[ModalBatch]
    evaluator: RetrievalEvaluator
    device: torch.device
    missing: Sequence[Modality]
    world: World

    def __call__(
        self, model: Callable[[ModalBatch], ModelOutput], check_stop: Callable[[], None] = lambda: None
    ) -> EvaluationResult:
        """Score a model."""
        return evaluate(model, **vars(self), check_stop=check_stop)


def evaluate_settings(
    model: SettingsModel,
    *,
    loader: Iterable[ModalBatch],
    evaluators: Mapping[str, RetrievalEvaluator],
    device: torch.device,
    world: World | None = None,
    observe: Callable[[ModalBatch, Outputs], None] | None = None,
) -> dict[str, EvaluationResult]:
    """Evaluate under several settings of missing modalities, in one pass over the images.

    Args:
        model: see `SettingsModel`.
        loader: see `evaluate`.
        evaluators: by the setting, a key of `MISSING_SETTINGS`.
        device: see `evaluate`.
        world: see `evaluate`.
        observe: called with each batch, complete, and its outputs.

    Returns:
        By setting. `seconds` is the time that all of them took together.
    """
    settings = {setting: MISSING_SETTINGS[setting] for setting in evaluators}

    def forward(batch: ModalBatch) -> Outputs:
        outputs = model.forward_settings(batch, settings)
        if observe is not None:
            observe(batch, outputs)
        return outputs

    with _evaluation_mode(model):
        return _evaluate(forward, loader=loader, evaluators=evaluators, device=device, world=world or World())


@torch.no_grad()
def _evaluate(
    forward: Callable[[ModalBatch], Outputs],
    *,
    loader: Iterable[ModalBatch],
    evaluators: Mapping[str, RetrievalEvaluator],
    device: torch.device,
    world: World,
    check_stop: Callable[[], None] = lambda: None,
) -> dict[str, EvaluationResult]:
    """Feed each evaluator with its outputs, join the processes, and score."""
    start = time.perf_counter()
    for evaluator in evaluators.values():
        evaluator.reset()
    quiet = None if world.is_main else True
    for batch in tqdm(loader, desc="evaluate", unit="batch", leave=False, disable=quiet):
        batch = batch.to(device)
        outputs = forward(batch)
        for setting, evaluator in evaluators.items():
            evaluator.update(outputs[setting], batch)
    check_stop()
    for evaluator in evaluators.values():
        evaluator.join(world.gather_objects(evaluator.state()))
        evaluator.compute()  # is remembered
    seconds = time.perf_counter() - start
    return {
        setting: EvaluationResult(
            ranking=evaluator.compute(),
            selection=evaluator.compute_selection(),
            slimming=evaluator.compute_selection("slimming"),
            num_samples=evaluator.num_samples,
            seconds=seconds,
            re_ranked=evaluator.re_rank,
        )
        for setting, evaluator in evaluators.items()
    }


@contextmanager
def _evaluation_mode(model: object) -> Iterator[None]:
    """Evaluation mode for a module, and its earlier mode afterwards; nothing for a plain function."""
    if not isinstance(model, nn.Module):
        yield
        return
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def raw_pixels(batch: ModalBatch) -> ModelOutput:
    """A control that has learnt nothing: the images themselves, averaged over blocks of 8 x 8 pixels."""
    blocks = batch.images.map(lambda images: F.avg_pool2d(images, PIXEL_BLOCK, ceil_mode=True).flatten(1))
    pixels = torch.cat(blocks, dim=1)
    return ModelOutput(heads=(HeadOutput("pixels", pixels, pixels, pixels, Role.ORIGINAL),))
