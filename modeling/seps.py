"""SEPS, the image–text ancestor of SDTPS: the paper, the published code, and everything between.

The two versions differ in seven places, each a switch of `CrossSparseAggrNet`; docs/seps.md compares them.
The numbers (1) to (7) count the equations of the method (arXiv 2511.01390) in the order of docs/seps.md.

The file needs torch, and sdtps.py beside it; copy the two into another project and they work there.

Shapes: V images, T texts, L words, N patches, C channels, K kept patches, A aggregated tokens, and M tokens
that stand for an image before a text: A + 1, or A + 2 with the class token.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import reduce
from importlib import import_module
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from modeling import sdtps
else:  # the neighbour of this file, in whatever folder or package the two are
    sdtps = import_module(f"{__package__}.sdtps" if __package__ else "sdtps")

Version = Literal["paper", "code"]
Masks = Tensor | tuple[Tensor, ...]
"""The decisions for all pairs, as `RatioLoss` needs them: with `ratio_loss="paper"` the pair D_s, D_d, each
(T, V, N); with "code" the sum of the two, (T, V, N). Without dense texts there is no D_d."""

TokenAggregation = sdtps.TokenAggregation


class SEPSLosses(NamedTuple):
    """Three scalars; total = alignment + ratio_weight * ratio."""

    total: Tensor
    alignment: Tensor
    ratio: Tensor


class PairChoice(NamedTuple):
    """Which patches of an image are kept for a text.

    Attributes:
        decision: D, exactly 1 where a patch is kept and 0 elsewhere, (V, T, N); has a gradient with Gumbel.
        extra: share of each patch in the extra token, 0 for the kept ones, (V, T, N).
        scores: (V, T, N); larger is kept.
    """

    decision: Tensor
    extra: Tensor
    scores: Tensor


class _Texts(NamedTuple):
    """Padded texts.

    Attributes:
        words: (T, L, C).
        valid: False where there is only padding, (T, L).
        guides: the global of each text, normalised, without gradient, (T, C).
    """

    words: Tensor
    valid: Tensor
    guides: Tensor

    def split(self, size: int) -> Iterator[_Texts]:
        """Yield the texts in chunks of at most `size`."""
        return map(_Texts._make, zip(*(field.split(size) for field in self), strict=True))


class _Images(NamedTuple):
    """What is known of the images before any text is read.

    Attributes:
        patches: (V, N, C).
        class_token: (V, 1, C); (V, 0, C) if there is none.
        directions: normalised patches, without gradient, (V, C, N).
        similarity: s_im, without gradient, (V, 1, N).
        predicted: s_p for the sparse and the dense branch, (V, 1, N) each, or None each.
        logits: aggregation logits for the sparse and the dense branch, (V, 1, A, N) each.
    """

    patches: Tensor
    class_token: Tensor
    directions: Tensor
    similarity: Tensor
    predicted: tuple[Tensor | None, Tensor | None]
    logits: tuple[Tensor, Tensor]


def _is_paper(switch: str, version: Version) -> bool:
    if version not in get_args(Version):
        raise ValueError(f"unknown {switch} {version!r}; choose from {sorted(get_args(Version))}")
    return version == "paper"


class TokenSparse(nn.Module):
    """Score the patches of an image for a text, and keep the best: equations (1) to (3).

    Args:
        dim: C.
        score: "paper" or "code"; see `score`.
        decision: in training, "paper" gives the decision the gradient of a Gumbel softmax, "code" none.
        sparse_ratio: share of the patches to keep, in (0, 1].
        beta: weight of the similarities in the score of the paper.
        gumbel_tau: temperature of the Gumbel softmax.
    """

    def __init__(
        self,
        dim: int,
        *,
        score: Version = "code",
        decision: Version = "code",
        sparse_ratio: float = 0.5,
        beta: float = 0.25,
        gumbel_tau: float = 1.0,
    ) -> None:
        super().__init__()
        self.sparse_ratio = sparse_ratio
        self.beta = beta
        self.use_gumbel = _is_paper("decision", decision)
        self.gumbel_tau = gumbel_tau
        self.score_predictor = sdtps.score_network(dim) if _is_paper("score", score) else None

    def predict(self, patches: Tensor) -> Tensor | None:
        """(1): s_p = sigmoid(MLP(patch)), (V, N, C) -> (V, 1, N); None in the code version."""
        if self.score_predictor is None:
            return None
        return self.score_predictor(patches).float().sigmoid().transpose(1, 2)

    def score(self, predicted: Tensor | None, image: Tensor, texts: Sequence[Tensor]) -> Tensor:
        """(3): (1 - 2 beta) * s_p + beta * (s_st + s_dt + 2 * s_im); in the code version s_im + s_text.

        Args:
            predicted: s_p, (V, 1, N), or None.
            image: s_im, (V, 1, N).
            texts: similarities with the text of this branch, then with the other, if any; (V, T, N) each.

        Returns:
            (V, T, N).
        """
        if predicted is None:
            return image + texts[0]
        image, *others = (sdtps.min_max_normalise(similarity) for similarity in (image, *texts))
        return sdtps.combine_scores(predicted, image, others, self.beta)

    def forward(self, predicted: Tensor | None, image: Tensor, texts: Sequence[Tensor]) -> PairChoice:
        """Keep the K patches with the highest noise-free scores; the arguments are those of `score`."""
        scores = self.score(predicted, image, texts)
        tau = self.gumbel_tau if self.use_gumbel and self.training else None
        _, discarded, decision = sdtps.choose(scores, self.sparse_ratio, tau)
        shares = sdtps.extra_weights(scores, discarded)
        return PairChoice(decision, torch.zeros_like(scores).scatter(-1, discarded, shares), scores)


class DualTokenAggregation(nn.Module):
    """(4): A tokens from two selections, W_s V_s + W_d V_d; each selection has its own weight network.

    Args:
        dim: C.
        num_tokens: A.
    """

    def __init__(self, dim: int, num_tokens: int) -> None:
        super().__init__()
        self.weight_sparse = sdtps.weight_network(dim, num_tokens)
        self.weight_dense = sdtps.weight_network(dim, num_tokens)
        self.scale = nn.Parameter(torch.ones(1, 1, 1))

    def logits(self, sparse: Tensor, dense: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens of the two selections, (B, K, C) each -> (B, A, K) each."""
        return (
            (self.scale * self.weight_sparse(sparse)).transpose(1, 2),
            (self.scale * self.weight_dense(dense)).transpose(1, 2),
        )

    def forward(
        self, sparse: Tensor, dense: Tensor, sparse_decision: Tensor, dense_decision: Tensor
    ) -> Tensor:
        """Tokens of the two selections, (B, K, C) each, and D at their places, (B, K) each -> (B, A, C)."""
        sparse_logits, dense_logits = self.logits(sparse, dense)
        sparse_weights = sdtps.masked_softmax(sparse_logits, sparse_decision)
        dense_weights = sdtps.masked_softmax(dense_logits, dense_decision)
        return sparse_weights @ sparse + dense_weights @ dense


class HRPA(nn.Module):
    """(5): how well the tokens of an image and the words of a text find each other.

    Each word takes its most similar token, and each token its most similar word. Either direction gives the
    mean of these maxima, in the paper version plus MLP(the k largest of them). The similarity is their sum.

    Args:
        alignment: "paper" has the MLP, one for both directions; "code" has none.
        similarity: "paper" is the cosine, "code" LeakyReLU(cosine, 0.1).
        top_k: k.
    """

    def __init__(self, *, alignment: Version = "code", similarity: Version = "code", top_k: int = 5) -> None:
        super().__init__()
        self.top_k = top_k
        self.use_leaky_relu = not _is_paper("similarity", similarity)
        self.relevance_mlp = (
            nn.Sequential(nn.Linear(top_k, 2 * top_k), nn.GELU(), nn.Linear(2 * top_k, 1))
            if _is_paper("alignment", alignment)
            else None
        )

    def forward(
        self, tokens: Tensor, words: Tensor, valid: Tensor, class_token: Tensor | None = None
    ) -> Tensor:
        """Align every image with every text.

        Args:
            tokens: those of each image for each text, (V, T, M, C).
            words: (T, L, C).
            valid: False where there is only padding, (T, L).
            class_token: one more token of each image, the same for all texts, (V, 1, C), or (V, 0, C).

        Returns:
            (V, T).
        """
        # The products are divided by the norms of the tokens, instead of the tokens, which are far larger.
        norms = torch.linalg.vector_norm(tokens, dim=-1, keepdim=True).clamp_min(1e-12)
        words = F.normalize(words, dim=-1)
        cosines = torch.einsum("vtmc,tlc->vtml", tokens, words) / norms
        if class_token is not None:
            shared = F.normalize(class_token, dim=-1) @ words.flatten(0, 1).T  # (V, 1, T * L)
            cosines = torch.cat([shared.unflatten(2, words.shape[:2]).transpose(1, 2), cosines], dim=2)
        word_maxima = cosines.max(dim=-2).values  # (V, T, L)
        token_maxima = cosines.masked_fill(~valid.unsqueeze(1), float("-inf")).max(dim=-1).values  # (V, T, M)
        if self.use_leaky_relu:  # it is monotone, so the maximum may be taken first
            word_maxima, token_maxima = F.leaky_relu(word_maxima, 0.1), F.leaky_relu(token_maxima, 0.1)
        every_token = valid.new_ones(token_maxima.shape[-1])
        return self._pool(word_maxima, valid) + self._pool(token_maxima, every_token)

    def _pool(self, maxima: Tensor, valid: Tensor) -> Tensor:
        """One direction: (V, T, S) maxima, of which the valid ones count -> (V, T)."""
        mean = maxima.masked_fill(~valid, 0.0).sum(dim=-1) / valid.sum(dim=-1)
        if self.relevance_mlp is None:
            return mean
        largest = maxima.masked_fill(~valid, float("-inf")).topk(min(self.top_k, maxima.shape[-1])).values
        # Where there are fewer than k, zeros follow, even after negative maxima.
        largest = largest.masked_fill(largest == float("-inf"), 0.0)
        largest = F.pad(largest, (0, self.top_k - largest.shape[-1]))
        return mean + self.relevance_mlp(largest).squeeze(-1)


def mask_xattn_one_text(img_embs: Tensor, cap_i_expand: Tensor) -> Tensor:
    """HRPA of the code version for one text without padding.

    Args:
        img_embs: tokens of each image, (V, M, C).
        cap_i_expand: the words, repeated for each image, (V, L, C).

    Returns:
        (V, 1).
    """
    valid = torch.ones(cap_i_expand.shape[:2], dtype=torch.bool, device=cap_i_expand.device)
    return HRPA()(img_embs.unsqueeze(0), cap_i_expand, valid).transpose(0, 1)


class CrossSparseAggrNet(nn.Module):
    """Similarities of all images with all texts; the patches are selected and aggregated for each pair.

    Each of the seven switches, `score` to `ratio_loss`, is "paper" or "code", or None for the version that
    `use_paper_version` chooses.

    Args:
        embed_size: C.
        num_patches: N, without the class token. Only the number A of aggregated tokens follows from it.
        sparse_ratio: share of the patches to keep.
        aggr_ratio: aggregated tokens as a share of the kept ones.
        use_paper_version: "paper" for all seven switches; otherwise "code".
        use_gumbel_softmax: another name for `decision`: True is "paper", False is "code".
        gumbel_tau: temperature of the Gumbel softmax.
        score: see `TokenSparse`.
        dense: "paper" fuses the selections for the sparse and the dense text, and aligns the tokens with the
            sparse text; "code" aligns either selection with its own text, and adds the similarities.
        aggregation: "paper" has one weight network for each selection, "code" one for both.
        alignment: see `HRPA`.
        similarity: see `HRPA`.
        decision: see `TokenSparse`.
        ratio_loss: the form of the masks; see `Masks`.
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
        score: Version | None = None,
        dense: Version | None = None,
        aggregation: Version | None = None,
        alignment: Version | None = None,
        similarity: Version | None = None,
        decision: Version | None = None,
        ratio_loss: Version | None = None,
        beta: float = 0.25,
        top_k: int = 5,
        text_chunk: int = 8,
    ) -> None:
        super().__init__()
        if use_gumbel_softmax is not None:
            same: Version = "paper" if use_gumbel_softmax else "code"
            if decision not in (None, same):
                raise ValueError(
                    f"use_gumbel_softmax={use_gumbel_softmax} contradicts decision={decision!r}; set one"
                )
            decision = same
        if text_chunk < 1:
            raise ValueError(f"text_chunk must be at least 1, not {text_chunk}")
        default: Version = "paper" if use_paper_version else "code"
        switches: dict[str, Version | None] = {
            "score": score,
            "dense": dense,
            "aggregation": aggregation,
            "alignment": alignment,
            "similarity": similarity,
            "decision": decision,
            "ratio_loss": ratio_loss,
        }
        self.versions = {name: default if chosen is None else chosen for name, chosen in switches.items()}
        self.text_chunk = text_chunk
        self.fuse_texts = _is_paper("dense", self.versions["dense"])
        self.sum_masks = not _is_paper("ratio_loss", self.versions["ratio_loss"])

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
            if _is_paper("aggregation", self.versions["aggregation"])
            else TokenAggregation
        )
        self.aggr_net = aggregate(embed_size, sdtps.num_aggregated(num_patches, sparse_ratio, aggr_ratio))
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
        sources = [_read_texts(cap_embs, cap_lens)]
        if long_cap_embs is not None and long_cap_lens is not None:
            sources.append(_read_texts(long_cap_embs, long_cap_lens))
        elif long_cap_embs is not None or long_cap_lens is not None:
            raise ValueError("long_cap_embs and long_cap_lens belong together; give both or none")
        if len({len(texts.words) for texts in sources}) > 1:
            raise ValueError(f"{len(cap_embs)} texts in cap_embs need as many in long_cap_embs, one for each")

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
        num_tokens = tokens.shape[1]
        first_patch = 0 if math.isqrt(num_tokens) ** 2 == num_tokens else 1
        patches = tokens[:, first_patch:]
        with torch.no_grad():
            directions = F.normalize(patches.float(), dim=-1)
            mean = F.normalize(patches.float().mean(dim=1, keepdim=True), dim=-1)
            similarity = (directions * mean).sum(dim=-1).unsqueeze(1)
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
        """Compare all images with a few texts.

        Args:
            images: V images.
            sources: T sparse texts and perhaps T dense texts.

        Returns:
            Similarities, (V, T), and one decision per source, (V, T, N).
        """
        with torch.no_grad(), torch.autocast(images.patches.device.type, enabled=False):
            similar = [texts.guides @ images.directions for texts in sources]  # (2), (V, T, N)
        decisions, aggregated, extra = [], [], []
        for index, select in enumerate((self.sparse_net_cap, self.sparse_net_long)[: len(sources)]):
            own_first = [similar[index], *similar[:index], *similar[index + 1 :]]
            choice: PairChoice = select(images.predicted[index], images.similarity, own_first)
            decisions.append(choice.decision)
            aggregated.append(sdtps.masked_softmax(images.logits[index], choice.decision))
            extra.append(choice.extra.unsqueeze(2))
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
    of each pair would halve it, but copy V * T * K * C numbers.

    Args:
        images: V images.
        weights: share of each patch in each token, (V, T, A + 1, N).

    Returns:
        (V, T, A + 1, C).
    """
    return (weights.to(images.patches.dtype).flatten(1, 2) @ images.patches).unflatten(1, weights.shape[1:3])


class ContrastiveLoss(nn.Module):
    """(6): a matching pair must beat the others of its image and of its text by a margin.

    Args:
        margin: in units of similarity.
        max_violation: count the hardest negative alone; otherwise the sum over all negatives.
    """

    def __init__(self, margin: float = 0.2, max_violation: bool = False) -> None:
        super().__init__()
        self.margin = margin
        self.max_violation = max_violation

    def forward(self, similarities: Tensor) -> Tensor:
        """(V, V), image i and text i belonging together -> scalar, summed over images and texts."""
        if similarities.dim() != 2 or similarities.shape[0] != similarities.shape[1]:
            raise ValueError(
                f"similarities must be square, image i with text i, not {tuple(similarities.shape)}"
            )
        matching = similarities.diagonal()
        others = ~torch.eye(len(similarities), dtype=torch.bool, device=similarities.device)
        wrong_text = (self.margin + similarities - matching.unsqueeze(1)).clamp_min(0) * others
        wrong_image = (self.margin + similarities - matching.unsqueeze(0)).clamp_min(0) * others
        if self.max_violation:
            return wrong_text.amax(dim=1).sum() + wrong_image.amax(dim=0).sum()
        return wrong_text.sum() + wrong_image.sum()


class RatioLoss(nn.Module):
    """(7): the share of kept patches should be the target. The form of the masks says which version is meant.

    Paper: lambda_sparse * (mean D_s - target)^2 + lambda_dense * (mean D_d - target)^2. Code:
    (mean(D_s + D_d) - target)^2.

    Args:
        target_ratio: the share of patches to keep.
        lambda_sparse: weight of D_s; paper only.
        lambda_dense: weight of D_d; paper only.
    """

    def __init__(
        self, target_ratio: float = 0.5, lambda_sparse: float = 1.0, lambda_dense: float = 1.0
    ) -> None:
        super().__init__()
        self.target_ratio = target_ratio
        self.lambdas = (lambda_sparse, lambda_dense)

    def forward(self, masks: Masks) -> Tensor:
        """Masks, (T, V, N) each -> scalar."""
        if isinstance(masks, Tensor):
            return (masks.mean() - self.target_ratio) ** 2
        terms = [
            weight * (mask.mean() - self.target_ratio) ** 2
            for weight, mask in zip(self.lambdas, masks, strict=False)  # no dense text, no second mask
        ]
        return reduce(torch.add, terms)


class SEPSLoss(nn.Module):
    """Contrastive loss + ratio_weight * ratio loss; see the two for the arguments."""

    def __init__(
        self,
        margin: float = 0.2,
        target_ratio: float = 0.5,
        ratio_weight: float = 2.0,
        max_violation: bool = False,
        lambda_sparse: float = 1.0,
        lambda_dense: float = 1.0,
    ) -> None:
        super().__init__()
        self.ratio_weight = ratio_weight
        self.alignment = ContrastiveLoss(margin, max_violation)
        self.ratio = RatioLoss(target_ratio, lambda_sparse, lambda_dense)

    def forward(self, similarities: Tensor, masks: Masks) -> SEPSLosses:
        """What the network returns in training: (V, V) similarities and the masks."""
        alignment, ratio = self.alignment(similarities), self.ratio(masks)
        return SEPSLosses(alignment + self.ratio_weight * ratio, alignment, ratio)


SDTPS = CrossSparseAggrNet
HRPA_function = mask_xattn_one_text
create_seps_model = CrossSparseAggrNet
