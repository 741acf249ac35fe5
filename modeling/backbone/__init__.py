"""Images -> tokens: the trunk, the camera embedding, and slimming between the blocks."""

from modeling.backbone.backbone import Backbone, EncodedImages
from modeling.backbone.trunk import CLIP_VIT_B16, TINY_STEM, Trunk, make_trunk

__all__ = ["CLIP_VIT_B16", "TINY_STEM", "Backbone", "EncodedImages", "Trunk", "make_trunk"]
