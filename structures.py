"""The types that cross the borders of packages. Every package may import from here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import combinations
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from typing_extensions import NamedTuple

T = TypeVar("T")
U = TypeVar("U")

RETURN_PATTERNS = {1: "original", 2: "fused", 3: "original + fused"}
"""Which features make up the descriptor of a sample: DeMo's three return patterns."""

LAST_EPOCH = "last epoch"
"""What metrics.json calls the scores of the last epoch."""
BEST_ON = {split: f"best on {split}" for split in ("validation", "test")}
"""What it calls those of the best epoch, by the split that this was chosen on."""


class Modality(Enum):
    """The three image types. The order of declaration is the order used everywhere."""

    RGB = "RGB"
    NI = "NI"
    TI = "TI"

    @property
    def letter(self) -> str:
        """The letter by which configurations name the modality: r, n or t."""
        return self.value[0].lower()

    @property
    def key(self) -> str:
        """The name used in parameter and loss names: rgb, ni or ti."""
        return self.value.lower()


class PerModality(NamedTuple, Generic[T]):
    """One value for each modality, in the order of `Modality`."""

    rgb: T
    ni: T
    ti: T

    def map(self, function: Callable[[T], U]) -> PerModality[U]:
        """Apply `function` to each of the three values."""
        return PerModality(*(function(value) for value in self))

    def of(self, modality: Modality) -> T:
        """The value that belongs to `modality`."""
        return tuple(self)[list(Modality).index(modality)]

    @staticmethod
    def build(function: Callable[[Modality], U]) -> PerModality[U]:
        """Make one value for each modality."""
        return PerModality(*(function(modality) for modality in Modality))


@dataclass(frozen=True)
class ImageRecord:
    """One triple on disk, as a data set reader yields it."""

    # The image file of each modality; None for a modality that the data set does not have.
    paths: PerModality[Path | None]
    person_id: int  # in training records a label in [0, number of identities), in test records the id on disk
    camera_id: int  # from 0
    scene_id: int = 0  # from 0; 0 for data sets without scenes
    mask_path: Path | None = None  # an image that is white where the person is, if the data set has one
    is_strip: bool = False  # the three images stand side by side in one file, which is the path of each

    def __post_init__(self) -> None:
        if not self.files:
            raise ValueError(f"a record of identity {self.person_id} has no image file")

    @property
    def files(self) -> tuple[Path, ...]:
        """The image files, each once, in the order of `Modality`."""
        return tuple(dict.fromkeys(path for path in self.paths if path is not None))

    @property
    def present(self) -> PerModality[bool]:
        """Which images are there."""
        return self.paths.map(lambda path: path is not None)

    @property
    def name(self) -> str:
        """The file name, which the modalities share."""
        return self.files[0].name


_ALL_OF_THEM: Any = None  # the default of `ModalBatch.present`, which then is made of ones


@dataclass(frozen=True)
class ModalBatch:
    """B triples, ready for the model."""

    images: PerModality[Tensor]  # normalised images, each (B, 3, H, W); zeros where one is absent
    person_ids: Tensor  # (B,) integers
    camera_ids: Tensor  # (B,) integers
    scene_ids: Tensor  # (B,) integers
    names: tuple[str, ...] = ()  # B file names, for messages
    person_masks: Tensor | None = None  # (B, H, W), 1 where the person is, or None where no masks are on disk
    # The image files in whose place others were read, as "path (modality): reason".
    unreadable: tuple[str, ...] = ()
    # Which images are there, each (B,) booleans; all of them unless given. Nobody asks the pixels.
    present: PerModality[Tensor] = _ALL_OF_THEM

    def __post_init__(self) -> None:
        if self.present is None:
            there = torch.ones_like(self.person_ids, dtype=torch.bool)
            object.__setattr__(self, "present", PerModality(there, there, there))

    @property
    def num_images(self) -> int:
        """How many images are there; waits for the device that holds the batch."""
        return int(torch.stack(self.present).sum())

    def __len__(self) -> int:
        return int(self.person_ids.shape[0])

    def _map_tensors(self, function: Callable[[Tensor], Tensor]) -> ModalBatch:
        return replace(
            self,
            images=self.images.map(function),
            person_ids=function(self.person_ids),
            camera_ids=function(self.camera_ids),
            scene_ids=function(self.scene_ids),
            person_masks=None if self.person_masks is None else function(self.person_masks),
            present=self.present.map(function),
        )

    def to(self, device: torch.device) -> ModalBatch:
        """The same batch on another device; the copy overlaps with computation where memory is pinned."""
        return self._map_tensors(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> ModalBatch:
        """Called by torch's DataLoader when `pin_memory` is on."""
        return self._map_tensors(lambda tensor: tensor.pin_memory())

    def without(self, modalities: Sequence[Modality]) -> ModalBatch:
        """The batch as seen when `modalities` are missing: not present, zeros after normalisation."""

        def emptied(values: PerModality[Tensor]) -> PerModality[Tensor]:
            return PerModality.build(
                lambda m: torch.zeros_like(values.of(m)) if m in modalities else values.of(m)
            )

        return replace(self, images=emptied(self.images), present=emptied(self.present))


def missing_conditions(modalities: Sequence[Modality]) -> dict[str, tuple[Modality, ...]]:
    """What can be missing of these modalities, by the name of the condition: `complete`, `r` or `rn`.

    Every condition leaves at least one of them.
    """
    sizes = range(1, len(modalities))
    lost = [subset for size in sizes for subset in combinations(modalities, size)]
    return {"complete": (), **{"".join(m.letter for m in subset): subset for subset in lost}}


MISSING_CONDITIONS = missing_conditions(tuple(Modality))
"""Those of three modalities: complete, r, n, t, rn, rt, nt."""

PROTOCOLS = ("camera", "scene", "none")


def check_protocol(name: str) -> None:
    """Refuse a name that is none of `PROTOCOLS`."""
    if name not in PROTOCOLS:
        raise ValueError(f"unknown evaluation protocol {name!r}; choose from {list(PROTOCOLS)}")


@dataclass(frozen=True)
class RetrievalSet:
    """Triples to be looked up in each other."""

    # Batches (`ModalBatch`) of the distinct triples, each once, in a fixed order; with several processes,
    # this one's block of them.
    loader: DataLoader[Any]
    query_rows: np.ndarray  # for each query, its row in the order of `loader`
    # For each gallery item, its row in the order of `loader`; a triple may be in both.
    gallery_rows: np.ndarray
    # Which gallery items of the query's identity are dropped: those that share its `camera`, its `scene`, or,
    # with `none`, only the query itself.
    protocol: str
    modalities: tuple[Modality, ...] = tuple(Modality)  # those that any of the triples has

    def __post_init__(self) -> None:
        check_protocol(self.protocol)


@dataclass(frozen=True)
class SlimmedPatches:
    """How slimming has merged the patches of an image into n tokens."""

    indices: Tensor  # one patch of each token, ascending, (B, n), in [0, N)
    scores: Tensor  # the share of every patch in its token, (B, N), in (0, 1]; 1 where it has its own


@dataclass(frozen=True)
class ModalTokens:
    """B triples after the backbone: what a branch gets."""

    # One feature for the whole image, each (B, C): the class token, or what PIFE made of it.
    globals_: PerModality[Tensor]
    # Patch tokens, each (B, N, C); with slimming, those of patches that were merged are equal.
    patches: PerModality[Tensor]
    class_tokens: PerModality[Tensor]  # the class tokens as the backbone gave them, each (B, C)
    grid: tuple[int, int]  # rows and columns of the patches of an image, N = rows * columns
    slimmed: PerModality[SlimmedPatches] | None = None  # how patches were merged; None without slimming
    # How much the class token attends to each patch, each (B, N); None if no branch asked for it.
    attended: PerModality[Tensor] | None = None
    # How much of each patch the attention of all blocks brings to the class token, in each head, each
    # (B, heads, N), without gradient; likewise.
    rollout: PerModality[Tensor] | None = None
    images: PerModality[Tensor] | None = None  # normalised, each (B, 3, H, W); likewise
    # Whose tokens count, each (B,) booleans; those of the others are zeros. None if all count.
    present: PerModality[Tensor] | None = None

    def emptied(self, present: PerModality[Tensor]) -> ModalTokens:
        """The tokens of what is `present`, (B,) booleans of each modality, and zeros for the others."""

        def keep(values: PerModality[Tensor]) -> PerModality[Tensor]:
            def kept(modality: Modality) -> Tensor:
                own = values.of(modality)
                return own.masked_fill(~present.of(modality).view(-1, *[1] * (own.dim() - 1)), 0)

            return PerModality.build(kept)

        return replace(
            self,
            globals_=keep(self.globals_),
            patches=keep(self.patches),
            class_tokens=keep(self.class_tokens),
            attended=self.attended and keep(self.attended),
            rollout=self.rollout and keep(self.rollout),
            images=self.images and keep(self.images),
            present=present,
        )

    def replaced(self, modalities: Sequence[Modality], by: ModalTokens) -> ModalTokens:
        """The tokens with those of `modalities` taken from `by`."""

        def choose(own: PerModality[T], other: PerModality[T]) -> PerModality[T]:
            return PerModality.build(lambda m: (other if m in modalities else own).of(m))

        def choose_optional(
            own: PerModality[T] | None, other: PerModality[T] | None
        ) -> PerModality[T] | None:
            return own and other and choose(own, other)

        return replace(
            self,
            globals_=choose(self.globals_, by.globals_),
            patches=choose(self.patches, by.patches),
            class_tokens=choose(self.class_tokens, by.class_tokens),
            slimmed=choose_optional(self.slimmed, by.slimmed),
            attended=choose_optional(self.attended, by.attended),
            rollout=choose_optional(self.rollout, by.rollout),
            images=choose_optional(self.images, by.images),
        )


def _no_sources() -> PerModality[dict[str, Tensor]]:
    return PerModality({}, {}, {})


@dataclass(frozen=True)
class Selection:
    """What token selection decided, for reports and for the kept-patch precision."""

    # The kept patches: their indices, each (B, K), in [0, N); or, where samples keep different numbers of
    # them, booleans, each (B, N). `masks` and `indices` read both.
    kept: PerModality[Tensor]
    # One score per patch, each (B, N); larger is kept, unless a method joins several choices.
    scores: PerModality[Tensor]
    grid: tuple[int, int]  # rows and columns of the patches, N = rows * columns
    # What the scores are made of, by name, each (B, N), in [0, 1]: `learned`, `own` (the similarity with the
    # modality's own global), `ni` (with that of another modality) … Empty where the method has none.
    sources: PerModality[dict[str, Tensor]] = field(default_factory=_no_sources)
    # The share of each kept patch in each of the A aggregated tokens, each (B, A, K), which needs `kept` as
    # indices; None where nothing is aggregated.
    weights: PerModality[Tensor] | None = None

    @property
    def masks(self) -> PerModality[Tensor]:
        """Which patches were kept, each (B, N) booleans."""

        def mask(kept: Tensor) -> Tensor:
            if kept.dtype == torch.bool:
                return kept
            nothing = torch.zeros(len(kept), math.prod(self.grid), dtype=torch.bool, device=kept.device)
            return nothing.scatter(1, kept, True)

        return self.kept.map(mask)

    @property
    def indices(self) -> PerModality[list[Tensor]]:
        """The indices of the kept patches of each sample, (K,), where K may differ; on the CPU."""

        def rows(kept: Tensor) -> list[Tensor]:
            is_mask = kept.dtype == torch.bool
            return [row.nonzero()[:, 0] if is_mask else row for row in kept.cpu()]

        return self.kept.map(rows)


@dataclass(frozen=True)
class BranchOutput:
    """What a branch makes of the tokens of B triples."""

    features: Tensor  # one row per triple, (B, …); the branch's `finish` turns them into (B, D)
    # By name, scalars that the branch computed itself, as means over the B triples; with several processes,
    # the model takes the mean of theirs.
    losses: dict[str, Tensor] = field(default_factory=dict)
    selection: Selection | None = None  # which patches it kept; None if it does not select
    # What losses over the whole batch are made of, by name, each (B, …): see `Branch.batch_losses`.
    rows: dict[str, Tensor] = field(default_factory=dict)


class Role(Enum):
    """What the features of a head are for."""

    ORIGINAL = "original"
    """Return pattern 1: straight from the backbone."""
    FUSED = "fused"
    """Return pattern 2: from a branch that fuses the modalities."""
    AUXILIARY = "auxiliary"
    """Trained like the others, and not part of any descriptor."""


PATTERN_ROLES = {1: (Role.ORIGINAL,), 2: (Role.FUSED,), 3: (Role.ORIGINAL, Role.FUSED)}
"""What each return pattern is made of."""


@dataclass(frozen=True)
class HeadOutput:
    """What one BNNeck head gives, in training and in evaluation alike."""

    name: str  # of the branch: `ori`, or `ori_rgb` … for one head per modality; `sdtps`; `moe`
    logits: Tensor  # (B, number of identities)
    features: Tensor  # (B, D), before the neck: for the triplet loss and, by default, for retrieval
    neck_features: Tensor  # (B, D), after the neck
    role: Role  # decides the return patterns that the features are part of
    # The modalities whose parts, of equal width, stand side by side in the features; none after a fusion.
    parts: tuple[Modality, ...] = ()


@dataclass(frozen=True)
class ModelOutput:
    """All that one forward pass gives."""

    heads: tuple[HeadOutput, ...]  # one per branch, in their order
    # Named losses that branches computed themselves; added to the heads' losses.
    losses: dict[str, Tensor] = field(default_factory=dict)
    # What was kept, by the name of the branch; `slimming` for the tokens that it left in the backbone.
    selections: dict[str, Selection] = field(default_factory=dict)

    @property
    def selection(self) -> Selection | None:
        """What the first branch that selects has kept; without one, what slimming left."""
        return next(iter(self.selections.values()), None)

    @property
    def slimming(self) -> Selection | None:
        """What slimming left inside the backbone, or None without slimming."""
        return self.selections.get("slimming")

    @property
    def patterns(self) -> tuple[int, ...]:
        """The return patterns that this model has: all, 1 alone without fusion, 2 alone without original."""
        roles = {head.role for head in self.heads}
        return tuple(pattern for pattern, wanted in PATTERN_ROLES.items() if roles.issuperset(wanted))

    @property
    def parts(self) -> tuple[Modality, ...]:
        """The modalities whose parts make up return pattern 1; none if something else is in it."""
        original = [head.parts for head in self.heads if head.role is Role.ORIGINAL]
        return tuple(modality for parts in original for modality in parts) if all(original) else ()

    def embedding(self, pattern: int, *, after_neck: bool = False) -> Tensor:
        """The descriptor of each sample, not normalised.

        Args:
            pattern: 1 original, 2 fused, 3 both. A model that has one of these alone gives it for all.
            after_neck: take the features after the BNNeck instead of before.

        Returns:
            (B, D), where D depends on the pattern.
        """
        if pattern not in RETURN_PATTERNS:
            raise ValueError(f"unknown return pattern {pattern!r}; choose from {list(RETURN_PATTERNS)}")
        wanted = PATTERN_ROLES[pattern if pattern in self.patterns else self.patterns[-1]]
        parts = [h.neck_features if after_neck else h.features for h in self.heads if h.role in wanted]
        return torch.cat(parts, dim=1)


@dataclass(frozen=True, eq=False)
class RankingMetrics:
    """The score of one ranking, query by query. Queries without any positive in the gallery are skipped."""

    # (Q,) the mean, over the positives, of the share of positives among the items ranked so far, in [0, 1];
    # NaN where skipped.
    average_precisions: np.ndarray
    # (Q,) number of positives / rank of the last of them; NaN where skipped.
    inverse_negative_penalties: np.ndarray
    first_hits: np.ndarray  # (Q,) rank of the first positive, from 1; 0 where skipped
    max_rank: int = 50  # length of the CMC curve

    def of(self, queries: np.ndarray) -> RankingMetrics:
        """The scores of some of the queries, chosen by (Q,) booleans."""
        return RankingMetrics(
            self.average_precisions[queries],
            self.inverse_negative_penalties[queries],
            self.first_hits[queries],
            self.max_rank,
        )

    @property
    def mean_ap(self) -> float:
        """Mean average precision of the scored queries, in [0, 1]."""
        return float(np.nanmean(self.average_precisions))

    @property
    def mean_inp(self) -> float:
        """Mean inverse negative penalty of the scored queries, in [0, 1]."""
        return float(np.nanmean(self.inverse_negative_penalties))

    @property
    def cmc(self) -> np.ndarray:
        """(max_rank,) the shares of scored queries with a positive among the first 1, 2, … items."""
        return np.array([self.rank(k) for k in range(1, self.max_rank + 1)])

    @property
    def num_queries(self) -> int:
        """Queries that were scored."""
        return int(np.count_nonzero(self.first_hits))

    @property
    def num_skipped(self) -> int:
        """Queries that were not."""
        return len(self.first_hits) - self.num_queries

    def rank(self, k: int) -> float:
        """CMC at rank k: the share of scored queries with a positive among the first k items, in [0, 1]."""
        return float((self.first_hits[self.first_hits > 0] <= k).mean())

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for metrics.json, in percent."""
        return {
            "mAP": 100 * self.mean_ap,
            "mINP": 100 * self.mean_inp,
            **{f"rank_{k}": 100 * self.rank(k) for k in (1, 5, 10)},
            "queries": self.num_queries,
            "skipped": self.num_skipped,
        }
