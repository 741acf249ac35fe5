"""Deterministic tensors for the parity tests: the same name, shape and seed give the same values everywhere.

`fill(name, shape, seed)` stands for one entry of a published checkpoint (or one input).
The expected outputs in `data` were recorded from the original implementation, whose
checkpoint entries were filled by this function.
"""

import zlib

import numpy as np

EMBEDDINGS = ("_embedding", "_token", "_embed")


def fill(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """One float32 tensor; `num_batches_tracked` counters are int64 zero."""
    if name.endswith("num_batches_tracked"):
        return np.zeros(shape, dtype=np.int64)
    rng = np.random.RandomState(zlib.crc32(f"{seed}/{name}".encode()))
    x = rng.standard_normal(shape)
    if name.endswith("running_var"):
        x = 0.5 + rng.random_sample(shape)
    elif name.endswith("running_mean") or name.endswith(EMBEDDINGS):
        x = 0.1 * x
    elif len(shape) == 1:
        x = 1 + 0.05 * x if name.endswith("weight") else 0.05 * x
    elif not name.startswith("input/"):
        x = x * float(np.prod(shape[1:])) ** -0.5
    return x.astype(np.float32)
