"""Small layers that several parts of the model use."""

from torch import Tensor, nn


class QuickGELU(nn.Module):
    """x * sigmoid(1.702 x), the activation of CLIP."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same shape."""
        return x * (1.702 * x).sigmoid()
