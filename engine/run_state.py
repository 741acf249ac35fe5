"""What the training loop is told, and what it has to remember."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol


class Loader(Protocol):
    """Batches of one epoch, their number known."""

    def __iter__(self) -> Iterator[Any]: ...

    def __len__(self) -> int: ...


class Schedule(Protocol):
    """The learning rate of each epoch, counted from 1. It depends on the epoch alone, so it has no state."""

    def step(self, epoch: int) -> None:
        """Set the rates of the epoch that is about to start."""


class SetEpoch(Protocol):
    """Tells the loader's sampler which epoch comes, and how many of its batches are done already."""

    def __call__(self, epoch: int, first_batch: int) -> None:
        """Choose the batches that the next iteration gives."""


@dataclass(frozen=True)
class TrainSettings:
    """How to train.

    Attributes:
        epochs: number of epochs.
        clip_grad: largest gradient norm; 0 for no clipping.
        mixed_precision: float16 on CUDA; the CPU always computes in float32.
        log_period: steps between two log lines.
        eval_period: epochs between two evaluations; the last epoch is always evaluated.
        eval_split: what epochs are evaluated on, and the best is chosen by: `validation` or `test`.
        checkpoint_period: also keep the weights of every n-th epoch; 0 for none.
        config: the configuration as YAML, to be kept in the checkpoints.
        data: what the model was built for, and fingerprints of the data, to be kept in the checkpoints.
    """

    epochs: int
    clip_grad: float = 0.0
    mixed_precision: bool = True
    log_period: int = 10
    eval_period: int = 1
    eval_split: str = "test"
    checkpoint_period: int = 0
    config: str = ""
    data: dict[str, Any] = field(default_factory=dict)


@dataclass
class Progress:
    """How far a run has come; with weights, optimiser and random states, all that a resumed run needs.

    Attributes:
        epoch: finished epochs.
        steps_in_epoch: steps done in the epoch after those.
        step: steps done in all.
        best_map: best mAP so far, of the last return pattern.
        sums: sums over the steps of the unfinished epoch, by name.
        epochs: what metrics.json tells of each finished epoch.
        unreadable: training images that were replaced because they could not be read.
        initial_weights: what the run started from: `random`, or a weight file; empty if it is not known.
        initial_sha256: of that file; empty if there is none.
        environments: what the run was computed with, see `describe_environment`; one entry, unless it was
            resumed with something else.
    """

    epoch: int = 0
    steps_in_epoch: int = 0
    step: int = 0
    best_map: float = -1.0
    sums: dict[str, float] = field(default_factory=dict)
    epochs: list[dict[str, Any]] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    initial_weights: str = ""
    initial_sha256: str = ""
    environments: list[dict[str, Any]] = field(default_factory=list)

    def as_metrics(self) -> dict[str, Any]:
        """What metrics.json tells of a run, finished or not."""
        names = ("epochs", "environments", "initial_weights", "initial_sha256")
        return {name: getattr(self, name) for name in names}
