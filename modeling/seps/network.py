"""SEPS, the image–text ancestor of SDTPS: the paper, the published code, and everything between.

The two versions differ in seven places, each a switch of `CrossSparseAggrNet`; docs/seps.md compares them.
The numbers (1) to (7) count the equations of the method (arXiv 2511.01390) in our order; see docs/seps.md.

Shapes: V images, T texts, L words, N patches, C channels, K kept patches, A aggregated tokens, and M tokens
that stand for an image before a text: A + 1, or A + 2 with the class token.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .losses import Masks
from .parts import HRPA, DualTokenAggregation, PairChoice, TokenSparse, Version, is_paper
from .sdtps import TokenAggregation, masked_softmax, num_aggregated

SWITCHES = ("score", "dense", "aggregation", "alignment", "similarity", "decision", "ratio_loss")


class _Texts(NamedTuple):
    """Padded texts."""

    words: Tensor  # (T, L, C)
    valid: Tensor  # False where there is only padding, (T, L)
    guides: Tensor  # the global of each text, normalised, without gradient, (T, C)

    def split(self, size: int) -> Iterator[_Texts]:
        """Yield the texts in chunks of at most `size`."""
        return map(_Texts._make, zip(*(field.split(size) for field in self), strict=True))


class _Images(NamedTuple):
    """What is known of the images before any text is read."""

    patches: Tensor  # (V, N, C)
    class_token: Tensor  # (V, 1, C); (V, 0, C) if there is none
    directions: Tensor  # normalised patches, without gradient, (V, C, N)
    similarity: Tensor  # s_im, without gradient, (V, 1, N)
    predicted: tuple[Tensor | None, Tensor | None]  # s_p for the sparse and the dense text, (V, 1, N)
    logits: tuple[Tensor, Tensor]  # of the aggregation, for the sparse and the dense text, (V, 1, A, N)


class CrossSparseAggrNet(nn.Module):
    """Similarities of all images with all texts; the patches are selected and aggregated for each pair.

    Each of the `SWITCHES` is "paper" or "code", or None for the version that `use_paper_version` chooses:

    - `score`, `decision`: see `TokenSparse`.
    - `dense`: "paper" fuses the selections for the sparse and the dense text, and aligns the tokens with the
      sparse text; "code" aligns either selection with its own text, and adds the similarities.
    - `aggregation`: "paper" has one weight network for each selection, "code" one for both.
    - `alignment`, `similarity`: see `HRPA`.
    - `ratio_loss`: the form of the masks; see `Masks`.

    Args:
        embed_size: C.
        num_patches: N, without the class token. Only the number A of aggregated tokens follows from it.
        sparse_ratio: share of the patches to keep.
        aggr_ratio: aggregated tokens as a share of the kept ones.
        use_paper_version: "paper" for all seven switches; otherwise "code".
        use_gumbel_softmax: another name for `decision`: True is "paper", False is "code".
        gumbel_tau: temperature of the Gumbel softmax.
        beta: weight of the similarities in the score of the paper.
        top_k: size of the input of the MLP in `HRPA`.
        text_chunk: texts that are processed at once. It changes memory and speed, not the result.
    """

    def __init__(
        self,
        embed_size: int = 512,
        num_patches: int = 196,
        sparse_ratio: float = 0.5,
        aggr_ratio: float = 0.4,
        use_paper_version: bool = False,
        use_gumbel_softmax: bool | None = None,
        gumbel_tau: float = 1.0,
        *,
        beta: float = 0.25,
        top_k: int = 5,
        text_chunk: int = 8,
        **switches: Version | None,
    ) -> None:
        super().__init__()
        # Settle the seven switches.
        if unknown := switches.keys() - SWITCHES:
            raise TypeError(f"unknown switches {sorted(unknown)}; choose from {list(SWITCHES)}")
        if use_gumbel_softmax is not None:
            same: Version = "paper" if use_gumbel_softmax else "code"
            if (decision := switches.get("decision")) not in (None, same):
                raise ValueError(
                    f"use_gumbel_softmax={use_gumbel_softmax} contradicts decision={decision!r}; set one"
                )
            switches["decision"] = same
        if text_chunk < 1:
            raise ValueError(f"text_chunk must be at least 1, not {text_chunk}")
        default: Version = "paper" if use_paper_version else "code"
        chosen = {name: version for name, version in switches.items() if version is not None}
        self.versions: dict[str, Version] = dict.fromkeys(SWITCHES, default) | chosen
        self.text_chunk = text_chunk
        self.fuse_texts = is_paper("dense", self.versions["dense"])
        self.sum_masks = not is_paper("ratio_loss", self.versions["ratio_loss"])
        # Build the parts.
        self.sparse_net_cap, self.sparse_net_long = (
            TokenSparse(
                embed_size,
                score=self.versions["score"],
                decision=self.versions["decision"],
                sparse_ratio=sparse_ratio,
                beta=beta,
                gumbel_tau=gumbel_tau,
            )
            for _ in range(2)
        )
        aggregate = (
            DualTokenAggregation
            if is_paper("aggregation", self.versions["aggregation"])
            else TokenAggregation
        )
        self.aggr_net = aggregate(embed_size, num_aggregated(num_patches, sparse_ratio, aggr_ratio))
        self.hrpa = HRPA(
            alignment=self.versions["alignment"], similarity=self.versions["similarity"], top_k=top_k
        )

    def extra_repr(self) -> str:
        """The seven switches, for `print(model)`."""
        return ", ".join(f"{name}={version!r}" for name, version in self.versions.items())

    def forward(
        self,
        img_embs: Tensor,
        cap_embs: Tensor,
        cap_lens: Sequence[int] | Tensor,
        long_cap_embs: Tensor | None = None,
        long_cap_lens: Sequence[int] | Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Masks]:
        """Compare every image with every text.

        Args:
            img_embs: patches, (V, N, C), or a class token and patches, (V, 1 + N, C): the first token is the
                class token if the number of tokens is not a square.
            cap_embs: words of the sparse texts, padded, (T, L, C).
            cap_lens: number of words of each, (T,).
            long_cap_embs: words of the dense texts in the same order, padded, (T, L', C).
            long_cap_lens: number of words of each, (T,).

        Returns:
            Similarities, (V, T), and the masks; in evaluation the similarities alone.
        """
        # Read the texts of one or two sources.
        sources = [_read_texts(cap_embs, cap_lens)]
        if long_cap_embs is not None and long_cap_lens is not None:
            sources.append(_read_texts(long_cap_embs, long_cap_lens))
        elif long_cap_embs is not None or long_cap_lens is not None:
            raise ValueError("long_cap_embs and long_cap_lens belong together; give both or none")
        if len({len(texts.words) for texts in sources}) > 1:
            raise ValueError(f"{len(cap_embs)} texts in cap_embs need as many in long_cap_embs, one for each")

        # Compare a few texts at a time with all images.
        images = self._read_images(img_embs)
        chunks = zip(*(texts.split(self.text_chunk) for texts in sources), strict=True)
        results = (self._match(images, chunk) for chunk in chunks)
        if not self.training:  # kept for all pairs, the decisions would be the largest thing in memory
            return torch.cat([similarities for similarities, _ in results], dim=1)
        similarities, decisions = zip(*results, strict=True)
        masks = tuple(torch.cat(parts, dim=1).transpose(0, 1) for parts in zip(*decisions, strict=True))
        return torch.cat(similarities, dim=1), reduce(torch.add, masks) if self.sum_masks else masks

    def _read_images(self, tokens: Tensor) -> _Images:
        """Do once per image what needs no text. (V, N, C) or (V, 1 + N, C)."""
        # Set the class token aside, if there is one.
        num_tokens = tokens.shape[1]
        first_patch = 0 if math.isqrt(num_tokens) ** 2 == num_tokens else 1
        patches = tokens[:, first_patch:]
        # Compare the patches with their mean.
        with torch.no_grad():
            directions = F.normalize(patches.float(), dim=-1)
            mean = F.normalize(patches.float().mean(dim=1, keepdim=True), dim=-1)
            similarity = (directions * mean).sum(dim=-1).unsqueeze(1)
        # One set of aggregation logits for each selection, or the same for both.
        if isinstance(self.aggr_net, DualTokenAggregation):
            sparse_logits, dense_logits = self.aggr_net.logits(patches, patches)
        else:
            sparse_logits = dense_logits = self.aggr_net.logits(patches)
        return _Images(
            patches=patches,
            class_token=tokens[:, :first_patch],
            directions=directions.transpose(1, 2).contiguous(),
            similarity=similarity,
            predicted=(self.sparse_net_cap.predict(patches), self.sparse_net_long.predict(patches)),
            logits=(sparse_logits.unsqueeze(1).contiguous(), dense_logits.unsqueeze(1).contiguous()),
        )

    def _match(self, images: _Images, sources: Sequence[_Texts]) -> tuple[Tensor, list[Tensor]]:
        """Compare all images with T sparse texts, and perhaps T dense texts.

        Returns:
            Similarities, (V, T), and one decision per source, (V, T, N).
        """
        # Score and select the patches for each source of text.
        with torch.no_grad(), torch.autocast(images.patches.device.type, enabled=False):
            similar = [texts.guides @ images.directions for texts in sources]  # (2), (V, T, N)
        decisions, aggregated, extra = [], [], []
        for index, select in enumerate((self.sparse_net_cap, self.sparse_net_long)[: len(sources)]):
            own_first = [similar[index], *similar[:index], *similar[index + 1 :]]
            choice: PairChoice = select(images.predicted[index], images.similarity, own_first)
            decisions.append(choice.decision)
            aggregated.append(masked_softmax(images.logits[index], choice.decision))
            extra.append(choice.extra.unsqueeze(2))
        # Aggregate, for both sources together or for each alone, and align with the words.
        if self.fuse_texts:
            aggregated, extra = [reduce(torch.add, aggregated)], [reduce(torch.add, extra) / len(extra)]
            sources = sources[:1]
        similarities = [
            self.hrpa(_pool(images, torch.cat(rows, dim=2)), texts.words, texts.valid, images.class_token)
            for *rows, texts in zip(aggregated, extra, sources, strict=True)
        ]
        return reduce(torch.add, similarities), decisions


def _read_texts(words: Tensor, lengths: Sequence[int] | Tensor) -> _Texts:
    """Mark the padding and find the global of each text."""
    num_texts, longest, _ = words.shape
    counts = torch.as_tensor(lengths, device=words.device)
    if counts.shape != (num_texts,) or counts.min() < 1 or counts.max() > longest:
        raise ValueError(f"{num_texts} texts need {num_texts} lengths in 1..{longest}, not {counts.tolist()}")
    valid = torch.arange(longest, device=words.device) < counts.unsqueeze(1)
    with torch.no_grad():
        # The sum has the direction of the mean.
        guides = F.normalize(words.float().masked_fill(~valid.unsqueeze(-1), 0.0).sum(dim=1), dim=-1)
    return _Texts(words, valid, guides)


def _pool(images: _Images, weights: Tensor) -> Tensor:
    """The aggregated tokens and the extra token of each image for each text.

    With a weight of 0 for the discarded patches, this is one large product per image. Gathering the kept ones
    of each pair would halve it, but copy V * T * K * C numbers. (V, T, A + 1, N) -> (V, T, A + 1, C).
    """
    return (weights.to(images.patches.dtype).flatten(1, 2) @ images.patches).unflatten(1, weights.shape[1:3])
