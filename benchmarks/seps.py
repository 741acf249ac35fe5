"""Time SEPS, all pairs at once against one text at a time: `python -m benchmarks.seps --help`.

Both ways run by turns in one process, on the same weights and inputs. The time is that of the best run, since
what other programs take from the machine only adds to it. Memory is the growth of the peak over what was held
before: of the resident set on the CPU (Linux only), of torch's allocator on CUDA.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import logging
import math
import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from modeling.seps import CrossSparseAggrNet, DualTokenAggregation, TokenSparse, create_seps_model
from modeling.seps.sdtps import choose, combine_scores, extra_token, masked_softmax, min_max_normalise

logger = logging.getLogger(__name__)


class Inputs(NamedTuple):
    """The arguments of the network: V images, T sparse texts, T dense texts."""

    img_embs: Tensor
    cap_embs: Tensor
    cap_lens: list[int]
    long_cap_embs: Tensor
    long_cap_lens: list[int]


Result = tuple[Tensor, tuple[Tensor, Tensor]]
"""Similarities (V, T), and the decisions D_s and D_d, (T, V, N) each."""


def all_pairs(model: CrossSparseAggrNet, inputs: Inputs) -> Result:
    """The way of this project; the model must be in training and have the masks of the paper."""
    similarities, (sparse, dense) = model(*inputs)
    return similarities, (sparse, dense)


def one_text_at_a_time(model: CrossSparseAggrNet, inputs: Inputs) -> Result:
    """The way of the published code: for each text, gather the patches of each image, aggregate, align."""
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


class PeakMemory:
    """Bytes that were held at the worst moment since the start; nan where that cannot be read."""

    def __init__(self, device: str) -> None:
        self.device = device
        gc.collect()
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        elif (reset := Path("/proc/self/clear_refs")).exists():
            ctypes.CDLL(None).malloc_trim(0)  # what earlier steps have freed must not serve this one unseen
            reset.write_text("5")  # the peak starts anew from what is held now
        self.start = self._peak()

    def grown(self) -> float:
        """Peak since the start, minus what was held at the start."""
        return self._peak() - self.start

    def _peak(self) -> float:
        if self.device == "cuda":
            return torch.cuda.max_memory_allocated()
        status = Path("/proc/self/status")
        found = re.search(r"VmHWM:\s*(\d+) kB", status.read_text()) if status.exists() else None
        return int(found[1]) * 1024 if found else math.nan


def measure(step: Callable[[], object], device: str) -> tuple[float, float]:
    """Seconds and bytes of one step."""
    memory = PeakMemory(device)
    start = time.perf_counter()
    step()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start, memory.grown()


def compare(model: CrossSparseAggrNet, inputs: Inputs, repeats: int, device: str) -> None:
    """Log the times and peaks of both ways, forward and forward + backward."""
    ways = {"one text at a time": one_text_at_a_time, "all pairs at once": all_pairs}

    with torch.no_grad():
        (slow, slow_masks), (fast, fast_masks) = (way(model, inputs) for way in ways.values())
    # Where two scores agree to the last bit or two, rounding may decide for another patch.
    differ = [(a != b).any(dim=-1) for a, b in zip(slow_masks, fast_masks, strict=True)]
    same = ~(differ[0] | differ[1]).T
    logger.info(
        "largest difference of a similarity: %.1e over the %d of %d pairs that keep the same patches",
        (slow - fast).abs()[same].max().item(),
        same.sum().item(),
        same.numel(),
    )

    trained = [inputs.img_embs, inputs.cap_embs, inputs.long_cap_embs, *model.parameters()]

    def forward(way: Callable[[CrossSparseAggrNet, Inputs], Result]) -> None:
        with torch.no_grad():
            way(model, inputs)

    def forward_backward(way: Callable[[CrossSparseAggrNet, Inputs], Result]) -> None:
        for tensor in trained:
            tensor.requires_grad_().grad = None
        way(model, inputs)[0].square().sum().backward()

    for name, step in {"forward": forward, "forward + backward": forward_backward}.items():
        measured: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        for _ in range(repeats):
            for way, run in ways.items():
                measured[way].append(measure(partial(step, run), device))
        best = {way: min(seconds for seconds, _ in runs) for way, runs in measured.items()}
        for way, runs in measured.items():
            peak = max(peak for _, peak in runs) / 2**20
            logger.info("%-18s | %-18s | %6.2f s | peak + %5.0f MiB", name, way, best[way], peak)
        slow_seconds, fast_seconds = best.values()
        logger.info("%-18s | %.1f times faster", name, slow_seconds / fast_seconds)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", choices=["paper", "code"], default="code")
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--texts", type=int, default=160)
    parser.add_argument("--embed_size", type=int, default=512)
    parser.add_argument("--patches", type=int, default=196, help="a class token is added")
    parser.add_argument("--words", type=int, default=20)
    parser.add_argument("--long_words", type=int, default=60)
    parser.add_argument("--text_chunk", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model = create_seps_model(
        args.embed_size,
        args.patches,
        use_paper_version=args.version == "paper",
        ratio_loss="paper",  # the masks as a pair
        text_chunk=args.text_chunk,
    ).to(args.device)
    inputs = make_inputs(
        args.images, args.texts, args.patches + 1, args.embed_size, args.words, args.long_words, args.device
    )
    logger.info(
        "%s version, %d images x %d texts, embed %d, %d patches, %s, %d threads",
        args.version, args.images, args.texts, args.embed_size, args.patches, args.device, args.threads,
    )  # fmt: skip
    compare(model, inputs, args.repeats, args.device)


if __name__ == "__main__":
    main()
