"""Slimming: drop patches inside the backbone, so that the following blocks compute less.

After a block, the patches of each modality are scored with the help of the other modalities; the best share
is kept, and the others are fused into one extra token. The three images are aligned: a patch index means the
same part of the scene in all of them, while clutter and sensor faults differ. See docs/method.md.

Shapes: M modalities, B samples, C channels, N patches of an image, n patches that are left, K that are kept,
E extra tokens (0 or 1), P prefix tokens. The samples of the M modalities stand one after the other,
(M * B, ...), as the backbone sees them.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modeling.seps.sdtps import choose, min_max_normalise

SCORES = ("attention", "cosine")
"""What a class token says of a patch: how much it attends to it, or how similar it is to it."""


class SlimTokens(NamedTuple):
    """The tokens between two blocks."""

    prefix: Tensor  # the class token, then register tokens if the backbone has any, (M * B, P, C)
    patches: Tensor  # the patches that are left, (M * B, n, C)
    extra: Tensor  # one token that stands for the patches dropped so far, if there are any, (M * B, E, C)
    indices: Tensor  # of the patches that are left in the image, ascending, (M * B, n), in [0, N)
    scores: Tensor  # the last score of every patch of the image, (M * B, N); 0 before the first

    @staticmethod
    def whole(tokens: Tensor, num_prefix: int) -> SlimTokens:
        """All patches of the images; `tokens` are (M * B, P + N, C)."""
        prefix, patches = tokens[:, :num_prefix], tokens[:, num_prefix:]
        count, num_patches = patches.shape[:2]
        indices = torch.arange(num_patches, device=tokens.device).expand(count, -1)
        scores = torch.zeros(count, num_patches, device=tokens.device)
        return SlimTokens(prefix, patches, patches[:, :0], indices, scores)

    def joined(self) -> Tensor:
        """One sequence, (M * B, P + n + E, C)."""
        return torch.cat([self.prefix, self.patches, self.extra], dim=1)

    def updated(self, tokens: Tensor) -> SlimTokens:
        """The same tokens after a block; `tokens` as from `joined`."""
        sizes = [part.shape[1] for part in (self.prefix, self.patches, self.extra)]
        prefix, patches, extra = tokens.split(sizes, dim=1)
        return self._replace(prefix=prefix, patches=patches, extra=extra)


class Slimming(nn.Module):
    """Keeps the best share of the patches that are left; has no parameters.

    score = (2 * own + sum over other modalities) / (2 + number of other modalities)

    `own` is what the modality's class token says of the patch. With `attention`, another modality adds what
    *its* class token says of *its* patch at the same index, 0 if that has been dropped. With `cosine`, it
    adds the similarity of the patch with its class token, as in SDTPS. All are stretched to [0, 1]. A
    modality whose image is missing adds nothing.

    Args:
        keep_ratio: share of the patches to keep, in (0, 1].
        score: one of `SCORES`.
        cross_modal: whether other modalities add anything.
        use_gumbel: let the decision carry a gradient to the scores in training; see sdtps.py.
        gumbel_tau: temperature of the Gumbel softmax.
        warmup_epochs: in training, the share falls from 1 in the first epoch to `keep_ratio` in the epoch
            after these; see `set_epoch`.
    """

    def __init__(
        self,
        keep_ratio: float,
        *,
        score: str = "attention",
        cross_modal: bool = True,
        use_gumbel: bool = False,
        gumbel_tau: float = 1.0,
        warmup_epochs: int = 0,
    ) -> None:
        super().__init__()
        if score not in SCORES:
            raise ValueError(f"unknown slimming score {score!r}; choose from {list(SCORES)}")
        self.keep_ratio = self.train_ratio = keep_ratio
        self.score_kind = score
        self.cross_modal = cross_modal
        self.use_gumbel = use_gumbel
        self.gumbel_tau = gumbel_tau
        self.warmup_epochs = warmup_epochs

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch of training comes, from 1."""
        done = min(1.0, (epoch - 1) / self.warmup_epochs) if self.warmup_epochs else 1.0
        self.train_ratio = 1 - done * (1 - self.keep_ratio)

    def forward(self, state: SlimTokens, attention: Tensor, present: Tensor) -> SlimTokens:
        """Drop patches after a block.

        Args:
            state: the tokens after the block.
            attention: of the class token in the block, to the patches, then to the extra token,
                (M * B, n + E).
            present: whether an image is there, (M, B); False where it is missing.

        Returns:
            K patches and one extra token; the state as it is if all patches are kept.
        """
        # Score the patches.
        decide = self.use_gumbel and self.training
        # Half precision is too coarse to tell similar patches apart; an exported file has none.
        device = attention.device.type
        half = torch.is_autocast_enabled(device)
        in_full = torch.autocast(device, enabled=False) if half else nullcontext()
        with in_full, torch.set_grad_enabled(decide and torch.is_grad_enabled()):
            scores, extra_score = self._score(state, attention.float(), present)
        # Keep the best.
        ratio = self.train_ratio if self.training else self.keep_ratio
        kept, discarded, decision = choose(scores, ratio, self.gumbel_tau if decide else None)
        if discarded.shape[1] == 0:
            return state._replace(scores=state.scores.scatter(1, state.indices, scores.detach()))
        patches = _take(state.patches, kept)
        if decide:
            patches = patches * decision.gather(1, kept).unsqueeze(-1).to(patches.dtype)
        # Fuse the others and the earlier extra token into the new extra token.
        shares = torch.cat([scores.gather(1, discarded), extra_score], dim=1).softmax(dim=-1)
        dropped = torch.cat([_take(state.patches, discarded), state.extra], dim=1)  # (M * B, n - K + E, C)
        return SlimTokens(
            prefix=state.prefix,
            patches=patches,
            extra=shares.unsqueeze(1).to(dropped.dtype) @ dropped,
            indices=state.indices.gather(1, kept),
            scores=state.scores.scatter(1, state.indices, scores.detach()),
        )

    def _score(self, state: SlimTokens, attention: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
        """A score for each patch, (M * B, n), and for the extra token, (M * B, E)."""
        count = state.patches.shape[1]
        if self.score_kind == "cosine":
            everything = torch.cat([state.patches, state.extra], dim=1).float()
            said = F.cosine_similarity(everything, state.prefix[:, :1].float(), dim=-1)
        else:
            said = attention
        own, extra = min_max_normalise(said).split([count, said.shape[1] - count], dim=1)
        if not self.cross_modal:
            return own, extra
        there = present.to(own.dtype)  # (M, B)
        by_cosine = self.score_kind == "cosine"
        others = self._cosine_of_others(state, there) if by_cosine else self._same_index(own, state, there)
        num_others = (there.sum(dim=0) - there).flatten().unsqueeze(1)  # (M * B, 1)
        return (2 * own + others) / (2 + num_others), extra

    def _same_index(self, own: Tensor, state: SlimTokens, there: Tensor) -> Tensor:
        """The sum of what the other modalities say of their patch of the same index, (M * B, n)."""
        said = torch.zeros_like(state.scores, dtype=own.dtype).scatter(1, state.indices, own)  # (M * B, N)
        said = said.unflatten(0, (len(there), -1)) * there.unsqueeze(-1)  # (M, B, N)
        others = said.sum(dim=0) - said
        return others.flatten(0, 1).gather(1, state.indices)

    def _cosine_of_others(self, state: SlimTokens, there: Tensor) -> Tensor:
        """The sum of the similarities with the class tokens of the other modalities, (M * B, n)."""
        patches = F.normalize(state.patches.float(), dim=-1).unflatten(0, (len(there), -1))
        guides = F.normalize(state.prefix[:, 0].float(), dim=-1).unflatten(0, (len(there), -1))
        said = min_max_normalise(torch.einsum("mbnc,obc->ombn", patches, guides))  # guide o, patches of m
        said = said * there[:, None, :, None]
        own = torch.stack([said[m, m] for m in range(len(there))])
        return (said.sum(dim=0) - own).flatten(0, 1)


def _take(tokens: Tensor, indices: Tensor) -> Tensor:
    """(B, n, C) at (B, K) -> (B, K, C)."""
    return tokens.gather(1, indices.unsqueeze(-1).expand(-1, -1, tokens.shape[-1]))
