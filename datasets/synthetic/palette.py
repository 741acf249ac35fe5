"""The palette of the thermal images: matplotlib's `inferno`, in which RGBNT201 stores them."""

from __future__ import annotations

import numpy as np

_CONTROL_POINTS = bytes.fromhex(
    "0000040403120b0724150b37210c4a2e0a5a3c09654a0c6b57106d63146e70196e"
    "7d1e6d89226a962766a32b61af315cbb3755c63e4dd14644db4f3be35932eb6528"
    "f1711ef67f14f98d0afb9c06fcab0ffbba1ff9ca32f5d949f2e865f3f586fcffa4"
)
"""33 colours at equal distances; straight lines between them are at most 0.006 away from matplotlib's 256."""


def _interpolate() -> np.ndarray:
    points = np.frombuffer(_CONTROL_POINTS, dtype=np.uint8).reshape(-1, 3)
    positions = np.linspace(0.0, 255.0, len(points))
    return np.stack([np.interp(np.arange(256), positions, channel) for channel in points.T], axis=1)


INFERNO = np.rint(_interpolate()).astype(np.uint8)
"""The colours of 256 thermal values, (256, 3)."""


def colour_of_heat(heat: np.ndarray) -> np.ndarray:
    """Thermal values in [0, 1], (H, W), as colours, (H, W, 3) bytes."""
    return INFERNO[np.rint(255.0 * heat.clip(0.0, 1.0)).astype(np.uint8)]
