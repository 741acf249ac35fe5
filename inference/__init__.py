"""Use a trained model on images of your own."""

from inference.predictor import Embedded, Explanation, Predictor, Triple, Verification

__all__ = ["Embedded", "Explanation", "Predictor", "Triple", "Verification"]
