"""Small layers that several parts of the model use."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

SLOPE = 1.702


class _QuickGELU(torch.autograd.Function):
    """x * sigmoid(1.702 x), with two passes over the tensor for its gradient in place of five."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (SLOPE * x).sigmoid_().mul_(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        # It is silu(1.702 x) / 1.702 as well, whose two factors cancel in the gradient.
        return torch.ops.aten.silu_backward(*grads, SLOPE * x)


class QuickGELU(nn.Module):
    """x * sigmoid(1.702 x), the activation of CLIP."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same shape."""
        return _QuickGELU.apply(x)
