"""Data sets that the project draws itself, in the layout of RGBNT201 with masks."""

from datasets.synthetic.draw import ANYWHERE_SPEC, TRUNK_SPEC, SyntheticSpec
from datasets.synthetic.spec import DrawnSpec
from datasets.synthetic.store import ensure_synthetic
from datasets.synthetic.v1 import HARD_SPEC_V1, SpecV1

__all__ = [
    "ANYWHERE_SPEC",
    "HARD_SPEC_V1",
    "TRUNK_SPEC",
    "DrawnSpec",
    "SpecV1",
    "SyntheticSpec",
    "ensure_synthetic",
]
