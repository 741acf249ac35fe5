"""EDITOR (Zhang et al., CVPR 2024, arXiv 2403.10254): one choice of patches for all modalities, then HMA.

A patch is kept if any modality's class token attends to it, or if the images have much there:

- *spatial*: in each head, the patches with the largest class attention, multiplied through all blocks;
- *frequency*: the windows of the images that stand out, all modalities together.

HMA, blocks of masked attention, lets the kept patches of each modality and then of all modalities attend to
each other. BCC makes the modalities alike where nothing is kept, OCFR the class tokens of an identity.

The published code takes the wavelet transform of the images, averages the modalities and transforms back,
without having left out any band: what it ranks is the mean image. `bright_share` says that directly.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from errors import UserError
from modeling.branches import Branch
from modeling.branches.original import Original
from structures import BranchOutput, Modality, ModalTokens, PerModality, Role, Selection

HEAD_DIM = 64
NEW_SHARE = 0.8  # of the batch in a centre of OCFR; the old centre has the rest
HAAR_LEVELS = 2  # the finest ones; all four of them would give the variance of a window of 16 x 16


def bright_share(images: PerModality[Tensor], grid: tuple[int, int]) -> Tensor:
    """The share of pixels above 0 in each window of the mean image, as EDITOR's code ranks windows.

    Args:
        images: normalised, each (B, 3, H, W).
        grid: rows and columns of the windows, N = rows * columns.

    Returns:
        (B, N), in [0, 1].
    """
    mean = torch.stack(list(images)).float().mean(dim=(0, 2))  # over modalities and colours, (B, H, W)
    return F.adaptive_avg_pool2d((mean > 0).float(), grid).flatten(1)


def detail_energy(images: PerModality[Tensor], grid: tuple[int, int]) -> Tensor:
    """The energy of the detail bands of a Haar transform in each window, mean over the modalities.

    In each block of 2 x 2 values, the three detail bands hold what the low band does not: the sum of the
    squares minus the square of the low coefficient. The low band is transformed again.

    Args:
        images: normalised, each (B, 3, H, W).
        grid: rows and columns of the windows, N = rows * columns.

    Returns:
        (B, N), mean energy of a pixel, 0 for a flat window.
    """
    low = torch.stack(list(images), dim=1).float().mean(dim=2)  # grey, (B, 3, H, W)
    energy = low.new_zeros(len(low), grid[0] * grid[1])
    for level in range(HAAR_LEVELS):
        squares = 4 * F.avg_pool2d(low.square(), 2)
        low = 2 * F.avg_pool2d(low, 2)
        details = (squares - low.square()).clamp(min=0).mean(dim=1)  # (B, H', W'); rounding may go below 0
        energy = energy + F.adaptive_avg_pool2d(details, grid).flatten(1) / 4 ** (level + 1)
    return energy


FREQUENCIES = {"mean": bright_share, "high": detail_energy}
"""What ranks the windows: the mean image, as EDITOR's code does, or the high bands, as its name says."""


def largest(scores: Tensor, count: int) -> Tensor:
    """Which `count` values of the last dimension are the largest, of equal ones the first, as booleans."""
    order = scores.argsort(dim=-1, descending=True, stable=True)
    return torch.zeros_like(scores).scatter(-1, order[..., :count], 1.0).bool()


class HMABlock(nn.Module):
    """A transformer block without biases in its linear layers, in which only kept tokens are attended to.

    The published code sets the others to zero in every step. Since no kept token attends to them, they need
    not be touched; what becomes of them here means nothing.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.num_heads = dim // HEAD_DIM
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)
        self.fc1 = nn.Linear(dim, 4 * dim, bias=False)
        self.fc2 = nn.Linear(4 * dim, dim, bias=False)
        for linear in (self.qkv, self.proj, self.fc1, self.fc2):
            nn.init.trunc_normal_(linear.weight, std=0.02)

    def forward(self, tokens: Tensor, kept: Tensor) -> Tensor:
        """T tokens (B, T, C), of which the kept (B, T) may be attended to -> (B, T, C)."""
        qkv = self.qkv(self.norm1(tokens)).unflatten(2, (3, self.num_heads, HEAD_DIM)).transpose(1, 3)
        query, key, value = qkv.unbind(dim=2)  # (B, heads, T, D) each
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=kept[:, None, None])
        tokens = tokens + self.proj(attended.transpose(1, 2).flatten(2))
        return tokens + self.fc2(F.gelu(self.fc1(self.norm2(tokens))))


class EditorBranch(Branch):
    """Selects patches, and fuses class tokens and kept patches of the modalities.

    Args:
        dim: C, a multiple of the head width.
        num_patches: N.
        num_ids: training identities, for the centres of OCFR.
        frequency: what ranks windows, a key of `FREQUENCIES`.
        frequency_keep: how many windows are kept by that rank.
        head_keep: how many patches are kept in each head.
        drop: compute on the kept tokens alone, padded to the largest number in the batch; the features stay
            the same but for rounding. False: all tokens are carried along, as in the published code and in
            every exported graph.
        bcc_weight: weight of BCC; 0 for none.
        ocfr_weight: weight of OCFR; 0 for none.
    """

    needs = frozenset({"images", "rollout"})
    selects = True
    needs_all = True
    train_neck_bias = True
    cost_titles: Mapping[str, str] = {"": "EDITOR"}

    def __init__(
        self,
        dim: int,
        num_patches: int,
        num_ids: int,
        *,
        frequency: str = "mean",
        frequency_keep: int = 10,
        head_keep: int = 2,
        drop: bool = False,
        bcc_weight: float = 1.0,
        ocfr_weight: float = 1.0,
    ) -> None:
        super().__init__()
        if dim % HEAD_DIM:
            raise UserError(
                f"MODEL.USE_EDITOR needs a token width that is a multiple of {HEAD_DIM}, but that of this "
                f"backbone is {dim}; choose another MODEL.TRANSFORMER_TYPE"
            )
        if max(frequency_keep, head_keep) > num_patches:
            raise UserError(
                f"EDITOR.FREQUENCY_KEEP ({frequency_keep}) and EDITOR.HEAD_KEEP ({head_keep}) are limited by "
                f"the number of patches of an image ({num_patches}); lower them"
            )
        self.rank_windows = FREQUENCIES[frequency]
        self.frequency_keep, self.head_keep, self.drop = frequency_keep, head_keep, drop
        self.bcc_weight, self.ocfr_weight = bcc_weight, ocfr_weight
        self.out_dim = dim * len(Modality)
        # HMA: a block for each modality, one for all of them.
        self.own = nn.ModuleDict({m.key: HMABlock(dim) for m in Modality})
        self.joint = HMABlock(dim)
        self.norm = nn.LayerNorm(dim)
        self.reduce = nn.ModuleDict({m.key: nn.Linear(2 * dim, dim) for m in Modality})
        for linear in self.reduce.values():
            assert isinstance(linear, nn.Linear)
            nn.init.kaiming_normal_(linear.weight, mode="fan_out")
            nn.init.zeros_(linear.bias)
        # OCFR: what the class token of each identity is like.
        for modality in Modality:
            self.register_buffer(f"{modality.key}_centers", torch.zeros(num_ids, dim))

    def forward(self, tokens: ModalTokens) -> BranchOutput:
        """Globals, patches, images and rollout -> (B, 3C)."""
        assert tokens.rollout is not None
        assert tokens.images is not None
        with torch.no_grad():
            energy = self.rank_windows(tokens.images, tokens.grid)
            windows = largest(energy, self.frequency_keep)
            kept = torch.stack([windows, *tokens.rollout.map(self._looked_at)]).any(dim=0)  # (B, N)
        features, classes = self._fuse(tokens, kept)
        losses = {}
        if self.bcc_weight:
            losses["bcc"] = self.bcc_weight * background_loss(tokens.patches, ~kept)
        rows = {m.key: F.normalize(classes.of(m), dim=1) for m in Modality} if self.ocfr_weight else {}
        return BranchOutput(features, losses, _describe(tokens, kept, energy), rows)

    def _looked_at(self, shares: Tensor) -> Tensor:
        """The patches that any head of a modality leads to, (B, heads, N) -> (B, N); none if it is absent."""
        is_there = shares.flatten(1).any(dim=1, keepdim=True)
        return largest(shares, self.head_keep).any(dim=1) & is_there

    def _fuse(self, tokens: ModalTokens, kept: Tensor) -> tuple[Tensor, PerModality[Tensor]]:
        """The features (B, 3C), and the class tokens after the block of their modality, each (B, C)."""
        patches, mask = tokens.patches, kept
        if self.drop and not torch.compiler.is_compiling():  # an exported graph has fixed lengths
            order = kept.byte().argsort(dim=1, descending=True, stable=True)[:, : int(kept.sum(dim=1).max())]
            patches = patches.map(lambda p: p.gather(1, order.unsqueeze(2).expand(-1, -1, p.shape[2])))
            mask = kept.gather(1, order)
        # The blocks of the modalities, then the joint one.
        with_class = F.pad(mask, (1, 0), value=True)  # the class token is always kept
        alone = PerModality.build(
            lambda m: self.own[m.key](
                torch.cat([tokens.globals_.of(m).unsqueeze(1), patches.of(m)], dim=1), with_class
            )
        )
        joint = self.norm(self.joint(torch.cat(alone, dim=1), with_class.repeat(1, len(Modality))))
        # The class token, and the mean of the kept patches.
        fused = PerModality(*joint.chunk(len(Modality), dim=1))
        share = (mask / mask.sum(dim=1, keepdim=True)).unsqueeze(1)  # (B, 1, n)

        def pool(modality: Modality) -> Tensor:
            own = fused.of(modality)
            mean = (share.to(own.dtype) @ own[:, 1:]).squeeze(1)
            return self.reduce[modality.key](torch.cat([own[:, 0], mean], dim=1))

        return torch.cat(PerModality.build(pool), dim=1), alone.map(lambda own: own[:, 0])

    def batch_losses(self, rows: dict[str, Tensor], person_ids: Tensor) -> dict[str, Tensor]:
        """OCFR: move the centres of the identities towards the batch, then pull the class tokens to them."""
        centers = PerModality.build(lambda m: self.get_buffer(f"{m.key}_centers"))
        losses = [
            center_loss(centers.of(m), rows[m.key].to(centers.of(m).dtype), person_ids) for m in Modality
        ]
        return {"ocfr": self.ocfr_weight * torch.stack(losses).sum()}


def background_loss(patches: PerModality[Tensor], discarded: Tensor) -> Tensor:
    """BCC: the mean squared difference of each two modalities where nothing is kept; 0 elsewhere.

    Args:
        patches: each (B, N, C).
        discarded: (B, N) booleans.

    Returns:
        The sum over the three pairs, a scalar.
    """
    mask = discarded.unsqueeze(2)
    return torch.stack([((one - two).square() * mask).mean() for one, two in combinations(patches, 2)]).sum()


def center_loss(centers: Tensor, features: Tensor, person_ids: Tensor) -> Tensor:
    """OCFR of one modality: update the centres of the identities in the batch, then compare with them.

    Args:
        centers: one row per identity (ids, C), changed in place.
        features: (B, C).
        person_ids: (B,) labels.

    Returns:
        The mean squared distance of the features from the centre of their identity, a scalar.
    """
    with torch.no_grad():
        members = F.one_hot(person_ids, len(centers)).to(features.dtype)  # (B, ids)
        counts = members.sum(dim=0).unsqueeze(1)
        means = members.T @ features / counts.clamp(min=1)
        centers.copy_(torch.where(counts > 0, NEW_SHARE * means + (1 - NEW_SHARE) * centers, centers))
    return F.mse_loss(features, centers[person_ids])


def _describe(tokens: ModalTokens, kept: Tensor, energy: Tensor) -> Selection:
    """What was decided; scores are the class attention through all blocks, the sum over the heads."""

    def relative(values: Tensor) -> Tensor:
        return values / values.amax(dim=1, keepdim=True).clamp(min=1e-12)

    assert tokens.rollout is not None
    scores = tokens.rollout.map(lambda shares: shares.sum(dim=1))
    return Selection(
        kept=PerModality(kept, kept, kept),
        scores=scores,
        grid=tokens.grid,
        sources=scores.map(lambda own: {"rollout": relative(own), "frequency": relative(energy)}),
    )


class ClassTokens(Original):
    """An auxiliary head on the class tokens of some modalities: trained, and not part of the descriptor.

    Args:
        dim: C.
        modalities: all of them for one head (AL 1 in EDITOR), or one of them for a shared head (AL 0).
        shared_head: its name; empty for a head of its own.
    """

    role = Role.AUXILIARY
    train_neck_bias = True

    def __init__(
        self, dim: int, modalities: tuple[Modality, ...] = tuple(Modality), *, shared_head: str = ""
    ) -> None:
        super().__init__(dim, modalities)
        self.shared_head = shared_head
