"""Use a trained model on images of your own; a gallery alone does not import torch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inference.gallery import Gallery, Matches
    from inference.predictor import Embedded, Explanation, Predictor, Triple, Verification

__all__ = ["Embedded", "Explanation", "Gallery", "Matches", "Predictor", "Triple", "Verification"]


def __getattr__(name: str) -> Any:
    """Import what is asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "inference.gallery" if name in ("Gallery", "Matches") else "inference.predictor"
    return getattr(import_module(module), name)
