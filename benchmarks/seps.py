"""The row on SEPS: all pairs of images and texts at once, against one text at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.bench import Row, Sizes, compare
from modeling.seps import CrossSparseAggrNet, DualTokenAggregation, TokenSparse, create_seps_model
from modeling.seps.sdtps import choose, combine_scores, extra_token, masked_softmax, min_max_normalise

EMBED, PATCHES, WORDS, LONG_WORDS = 512, 196, 20, 60


class Inputs(NamedTuple):
    """The arguments of the network: V images, T sparse texts, T dense texts."""

    img_embs: Tensor
    cap_embs: Tensor
    cap_lens: list[int]
    long_cap_embs: Tensor
    long_cap_lens: list[int]


Result = tuple[Tensor, tuple[Tensor, Tensor]]
"""Similarities (V, T), and the decisions D_s and D_d, (T, V, N) each."""


def one_text_at_a_time(model: CrossSparseAggrNet, inputs: Inputs) -> Result:
    """The way of the published code: for each text, gather the patches of each image, aggregate, align."""
    # The similarity of each patch with its image, which no text changes.
    num_tokens = inputs.img_embs.shape[1]
    first_patch = 0 if math.isqrt(num_tokens) ** 2 == num_tokens else 1
    class_token, patches = inputs.img_embs[:, :first_patch], inputs.img_embs[:, first_patch:]
    with torch.no_grad():
        directions = F.normalize(patches, dim=-1)
        image = (F.normalize(patches.mean(dim=1, keepdim=True), dim=-1) * directions).sum(dim=-1)

    def select(selector: TokenSparse, network: torch.nn.Module, own: Tensor, other: Tensor) -> list[Tensor]:
        """Aggregated tokens (V, A, C), extra token (V, 1, C) and decision (V, N)."""
        scores = image + own
        if selector.score_predictor is not None:
            predicted = selector.score_predictor(patches).squeeze(-1).sigmoid()
            texts = [min_max_normalise(own), min_max_normalise(other)]
            scores = combine_scores(predicted, min_max_normalise(image), texts, selector.beta)
        tau = selector.gumbel_tau if selector.use_gumbel and selector.training else None
        _, discarded, decision = choose(scores, selector.sparse_ratio, tau)
        extra = extra_token(patches, scores, discarded)
        logits = (model.aggr_net.scale * network(patches)).transpose(1, 2)
        return [masked_softmax(logits, decision) @ patches, extra, decision]

    def align(tokens: Tensor, extra: Tensor, words: Tensor) -> Tensor:
        """One similarity per image, (V,)."""
        tokens = F.normalize(torch.cat([class_token, tokens, extra], dim=1), dim=-1)
        cosines = F.normalize(words, dim=-1).expand(len(tokens), -1, -1) @ tokens.transpose(1, 2)  # (V, L, M)
        if model.hrpa.use_leaky_relu:
            cosines = F.leaky_relu(cosines, 0.1)
        similarity = tokens.new_zeros(len(tokens))
        for maxima in (cosines.max(dim=2).values, cosines.max(dim=1).values):
            similarity = similarity + maxima.mean(dim=1)
            if model.hrpa.relevance_mlp is not None:
                largest = maxima.sort(dim=1, descending=True).values[:, : model.hrpa.top_k]
                padding = largest.new_zeros(len(largest), model.hrpa.top_k - largest.shape[1])
                relevance = model.hrpa.relevance_mlp(torch.cat([largest, padding], dim=1))
                similarity = similarity + relevance.squeeze(-1)
        return similarity

    # Each pair: select by both texts, then align.
    networks = (
        (model.aggr_net.weight_sparse, model.aggr_net.weight_dense)
        if isinstance(model.aggr_net, DualTokenAggregation)
        else (model.aggr_net.weight, model.aggr_net.weight)
    )
    similarities, sparse_decisions, dense_decisions = [], [], []
    for index, (length, long_length) in enumerate(zip(inputs.cap_lens, inputs.long_cap_lens, strict=True)):
        words, long_words = inputs.cap_embs[index, :length], inputs.long_cap_embs[index, :long_length]
        with torch.no_grad():
            own, other = (directions @ F.normalize(text.mean(dim=0), dim=0) for text in (words, long_words))
        tokens, extra, decision = select(model.sparse_net_cap, networks[0], own, other)
        long_tokens, long_extra, long_decision = select(model.sparse_net_long, networks[1], other, own)
        if model.fuse_texts:
            similarities.append(align(tokens + long_tokens, (extra + long_extra) / 2, words))
        else:
            similarities.append(align(tokens, extra, words) + align(long_tokens, long_extra, long_words))
        sparse_decisions.append(decision)
        dense_decisions.append(long_decision)
    return torch.stack(similarities, dim=1), (torch.stack(sparse_decisions), torch.stack(dense_decisions))


def make_inputs(
    num_images: int, num_texts: int, num_tokens: int, dim: int, words: int, long_words: int, device: str
) -> Inputs:
    """Random embeddings and random lengths."""

    def texts(longest: int) -> tuple[Tensor, list[int]]:
        lengths = torch.randint(longest // 2, longest + 1, (num_texts,))
        return torch.randn(num_texts, longest, dim, device=device), lengths.tolist()

    return Inputs(torch.randn(num_images, num_tokens, dim, device=device), *texts(words), *texts(long_words))


def seps(sizes: Sizes) -> Row:
    """SEPS, forward and backward: all pairs at once, against one text at a time as published."""
    # Model and inputs.
    torch.manual_seed(0)
    model = create_seps_model(EMBED, PATCHES, use_paper_version=False, ratio_loss="paper")
    images, texts = sizes.pairs
    inputs = make_inputs(images, texts, PATCHES + 1, EMBED, WORDS, LONG_WORDS, "cpu")
    trained = [inputs.img_embs, inputs.cap_embs, inputs.long_cap_embs, *model.parameters()]

    def step(way: Callable[[], Result]) -> Result:
        for tensor in trained:
            tensor.requires_grad_().grad = None
        similarities, masks = way()
        similarities.square().sum().backward()
        return similarities.detach(), masks

    # Both ways, with their gradients.
    ways = {"plain": partial(one_text_at_a_time, model, inputs), "project": partial(model, *inputs)}
    return compare(
        f"SEPS forward + backward, {images} images x {texts} texts",
        {name: partial(step, way) for name, way in ways.items()},
        sizes,
        at_least=2.5,
        difference=similarity_difference,
        tolerance=1e-5,
    )


def similarity_difference(first: Result, second: Result) -> float:
    """The largest difference over the pairs that keep the same patches; infinite if that is not nearly all.

    Where two scores agree to the last bit, rounding may decide for another patch.
    """
    kept = zip(first[1], second[1], strict=True)
    differ = torch.stack([(a != b).any(dim=-1) for a, b in kept]).any(dim=0).T  # (V, T)
    if differ.float().mean() > 0.1:
        return math.inf
    return float((first[0] - second[0]).abs()[~differ].max())
