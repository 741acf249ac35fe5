"""Absent images: the backbone leaves them out, and zeros or learned tokens stand in for theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from modeling.backbone import Backbone, EncodedImages
from structures import Modality, ModalTokens, PerModality, SlimmedPatches


class ImageRows(NamedTuple):
    """The images of M modalities and B triples, one modality after the other."""

    images: Tensor  # (M * B, 3, H, W)
    embedding_ids: Tensor  # row of the camera embedding for each, (M * B,)
    counts: tuple[int, ...]  # how many are of each modality, in the order of `Modality`
    present: Tensor  # which of them are there, (M, B)


def encode_present(backbone: Backbone, rows: ImageRows) -> EncodedImages:
    """Encode the images that are there in one call; zeros for the others."""
    images, embedding_ids, counts, present = rows
    if torch.compiler.is_compiling():  # a graph has no branches: it encodes all, and the caller masks
        return backbone(images, embedding_ids, counts)
    chosen = present.flatten().nonzero().squeeze(1)
    if len(chosen) in (0, len(images)):  # without any image there is nothing to leave out
        return backbone(images, embedding_ids, counts)
    encoded = backbone(images[chosen], embedding_ids[chosen], _left(counts, present.sum(dim=1).tolist()))

    def spread(values: Tensor) -> Tensor:
        empty = values.new_zeros(len(images), *values.shape[1:])
        return empty.index_copy(0, chosen, values)

    slimmed = encoded.slimmed
    return EncodedImages(
        globals_=spread(encoded.globals_),
        patches=spread(encoded.patches),
        slimmed=slimmed and SlimmedPatches(spread(slimmed.indices), spread(slimmed.scores)),
        attended=None if encoded.attended is None else spread(encoded.attended),
        rollout=None if encoded.rollout is None else spread(encoded.rollout),
    )


def _left(counts: Sequence[int], wanted: Sequence[int]) -> tuple[int, ...]:
    """How many images of each modality are wanted; `wanted` has a number for each that is not empty."""
    numbers = iter(wanted)
    return tuple(next(numbers) if count else 0 for count in counts)


class AbsentTokens(nn.Module):
    """Learned stand-ins for an absent image: of each modality one global and one patch token, of width C."""

    def __init__(self, dim: int, modalities: Sequence[Modality]) -> None:
        super().__init__()
        self.tokens = nn.ParameterDict({m.key: nn.Parameter(torch.zeros(2, dim)) for m in modalities})
        for token in self.tokens.values():
            nn.init.trunc_normal_(token, std=0.02)

    def forward(self, tokens: ModalTokens, present: PerModality[Tensor]) -> ModalTokens:
        """The tokens with the stand-ins where `present`, (B,) of each modality, is False."""

        def fill(values: PerModality[Tensor], which: int) -> PerModality[Tensor]:
            def filled(modality: Modality) -> Tensor:
                own, there = values.of(modality), present.of(modality)
                if modality.key not in self.tokens:
                    return own
                token = self.tokens[modality.key][which].to(own.dtype)
                return torch.where(there.view(-1, *[1] * (own.dim() - 1)), own, token)

            return PerModality.build(filled)

        globals_ = fill(tokens.globals_, 0)
        return replace(tokens, globals_=globals_, class_tokens=globals_, patches=fill(tokens.patches, 1))
