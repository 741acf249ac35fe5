"""How much work each row does: as in the table of targets, or tiny for the tests."""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.measure import Effort


@dataclass(frozen=True)
class Sizes:
    """The sizes of all rows.

    Attributes:
        effort: how often each row is repeated.
        evaluated: test triples, of the full evaluation.
        ranking: queries and gallery items.
        scene: queries and gallery items, by the scene protocol.
        reranking: queries and gallery items, which are one set there.
        million: queries and gallery items of the largest ranking; None leaves the row out.
        feature_width: numbers in a feature of the ranking rows.
        million_width: in one of the largest ranking.
        backbone: of the rows on DeMo; `small_backbone` is that of the evaluation.
        batch: triples of a training step.
        hdm_batch: triples that HDM gets.
        triples: of the data row.
        extras: also measure figures without a target: the plain way's memory, the backbone by itself.
    """

    effort: Effort
    evaluated: int = 200
    ranking: tuple[int, int] = (3000, 15000)
    scene: tuple[int, int] = (1000, 5000)
    reranking: tuple[int, int] = (1000, 4000)
    million: tuple[int, int] | None = (1000, 1_000_000)
    feature_width: int = 128
    million_width: int = 512
    backbone: str = "ViT-B-16"
    small_backbone: str = "vit_tiny_stem_patch8"
    batch: int = 4
    hdm_batch: int = 8
    triples: int = 96
    extras: bool = True

    def settings(self, backbone: str) -> list[str]:
        """The settings of DeMo with a backbone, for `load_config`."""
        parts = ["MODEL.GLOBAL_LOCAL", "True", "MODEL.HDM", "True", "MODEL.ATM", "True"]
        if backbone != self.small_backbone:
            return [*parts, "MODEL.TRANSFORMER_TYPE", backbone, "MODEL.SIE_CAMERA", "True"]
        small = ["INPUT.SIZE_TRAIN", "[128,64]", "INPUT.SIZE_TEST", "[128,64]", "MODEL.STRIDE_SIZE", "[8,8]"]
        return [*parts, *small, "MODEL.TRANSFORMER_TYPE", backbone, "MODEL.DROP_PATH", "0.0"]


FULL = Sizes(Effort(repeats=7, seconds=90, least=3))
QUICK = replace(FULL, effort=Effort(repeats=5, seconds=6, least=1), million=None, extras=False)
TINY = Sizes(
    Effort(repeats=1, seconds=0, least=1),
    evaluated=12,
    ranking=(20, 60),
    scene=(20, 60),
    reranking=(20, 60),
    million=(10, 500),
    feature_width=16,
    million_width=16,
    backbone="vit_tiny_stem_patch8",
    hdm_batch=2,
    triples=4,
)
