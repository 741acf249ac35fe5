"""The whole network: backbone, PIFE, SDTPS and/or HDM + ATMoE, heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from modeling.atmoe import ATMoE
from modeling.backbone import Backbone
from modeling.evidence import LocalEvidence
from modeling.hdm import HDM
from modeling.heads import BNNeckHead
from modeling.pife import PIFE
from modeling.sdtps import AggregatedTokens, AllPatches, MultiModalSDTPS, min_max_normalise
from structures import (
    ModalBatch,
    Modality,
    ModalTokens,
    ModelOutput,
    PatchPlaces,
    PerModality,
    Selection,
)

BEYOND_THE_TABLE = 1 << 30
"""A row that no camera embedding has."""


class MultiModalReID(nn.Module):
    """DeMo, extended with SDTPS. Each part but the backbone and the heads may be absent.

    Args:
        backbone: shared by the three modalities.
        heads: by name: `ori`, or `ori_rgb`, `ori_ni`, `ori_ti`; `sdtps`; `moe`; `evidence`.
        pife: joins globals and patches.
        sdtps: token selection, feeds the head `sdtps`.
        guide: the globals with which SDTPS compares patches: `reduced`, behind PIFE, or `class`, ahead of it.
            With `evidence` SDTPS goes by that.
        evidence: says where in the images to look, and feeds the head `evidence`.
        hdm: decoupling, feeds the head `moe`.
        atmoe: weighs what `hdm` gives.
        num_views: how many views share one camera in the camera embedding; 0 without view embedding.
        use_cameras: whether the camera embedding distinguishes cameras.

    Set `gather_batch` to train with several processes: it joins the parts of a batch, with gradient. The
    heads then see the whole batch in every process, so that the result does not depend on their number.
    """

    def __init__(
        self,
        *,
        backbone: Backbone,
        heads: dict[str, BNNeckHead],
        pife: PIFE | None = None,
        sdtps: MultiModalSDTPS | AllPatches | None = None,
        guide: str = "reduced",
        evidence: LocalEvidence | None = None,
        hdm: HDM | None = None,
        atmoe: ATMoE | None = None,
        num_views: int = 0,
        use_cameras: bool = True,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.pife = pife
        self.sdtps = sdtps
        self.guide = guide
        self.evidence = evidence
        self.hdm = hdm
        self.atmoe = atmoe
        self.heads = nn.ModuleDict(heads)
        self.num_views = num_views
        self.use_cameras = use_cameras
        self.gather_batch: Callable[[Tensor], Tensor] | None = None

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch of training comes, from 1; slimming may depend on it."""
        if self.backbone.slimming is not None:
            self.backbone.slimming.set_epoch(epoch)

    def forward(self, batch: ModalBatch) -> ModelOutput:
        """Encode B triples; the same path in training and evaluation."""
        return self.fuse(self.encode(batch))

    def encode(self, batch: ModalBatch) -> ModalTokens:
        """The first half of `forward`: the three modalities in one call of the backbone."""
        ids = self._embedding_ids(batch).repeat(len(Modality))
        images = torch.cat(batch.images)  # 3B
        encoded = self.backbone(images, ids)
        embeddings = None
        if self.evidence is not None:  # it does not teach the backbone, nor listen to a missing image
            present = images.flatten(1).any(dim=1)[:, None, None]
            embeddings = _split(encoded.embeddings.detach() * present)
        places = None
        if encoded.places is not None:
            positions, scores = _split(encoded.places.positions), _split(encoded.places.scores)
            places = PerModality(*map(PatchPlaces, positions, scores))
        return ModalTokens(_split(encoded.globals_), _split(encoded.patches), embeddings, places)

    def forward_settings(
        self, batch: ModalBatch, settings: Mapping[str, Sequence[Modality]]
    ) -> dict[str, ModelOutput]:
        """What `forward` gives without some of the modalities, for several such settings.

        Without slimming the backbone sees each modality by itself, so that the images are encoded once for
        all settings. With slimming the modalities guide each other, and each setting is a pass of its own.

        Args:
            batch: complete.
            settings: by any name, the modalities that are missing.
        """
        if self.backbone.slimming is not None:
            return {setting: self(batch.without(missing)) for setting, missing in settings.items()}
        tokens = self.encode(batch)
        absent = self._encode_missing(batch) if any(settings.values()) else tokens
        return {
            setting: self.fuse(tokens.replaced(missing, by=absent)) for setting, missing in settings.items()
        }

    def _encode_missing(self, batch: ModalBatch) -> ModalTokens:
        """The tokens that `encode` would give if all images of the batch were missing.

        They depend on the camera alone, so that each camera of the batch is encoded once.
        """
        ids, sample_ids = self._embedding_ids(batch).unique(return_inverse=True)
        encoded = self.backbone(torch.zeros_like(batch.images.rgb[: len(ids)]), ids)

        def shared(tensor: Tensor) -> PerModality[Tensor]:
            rows = tensor[sample_ids]
            return PerModality(rows, rows, rows)

        nothing = None if self.evidence is None else shared(torch.zeros_like(encoded.embeddings))
        return ModalTokens(shared(encoded.globals_), shared(encoded.patches), nothing)

    def fuse(self, tokens: ModalTokens) -> ModelOutput:
        """The second half of `forward`: from the backbone's tokens to the heads."""
        globals_, patches = tokens.globals_, tokens.patches
        if self.pife is not None:
            globals_ = self.pife(globals_, patches)

        features = {name: self._gather(f) for name, f in self._original_features(globals_).items()}
        evidence, evidence_logits, selection = None, None, None
        if self.evidence is not None:
            assert tokens.embeddings is not None
            seen, pooled = self.evidence(tokens.embeddings)
            evidence = min_max_normalise(seen.detach())
            evidence_logits = self.heads["evidence"](self._gather(pooled)).logits
        if self.sdtps is not None:
            guides = globals_ if self.guide == "reduced" else tokens.globals_
            positions = None if tokens.places is None else tokens.places.map(lambda place: place.positions)
            results: list[AggregatedTokens] = self.sdtps(patches, guides, evidence, positions)
            pooled = torch.cat([result.tokens.mean(dim=1) for result in results], dim=1)
            features["sdtps"] = self._gather(pooled)
            selection = self._describe(results, tokens.places)
        if self.hdm is not None:
            decoupled = self._gather(self.hdm(globals_, patches))  # (B, 7, C)
            features["moe"] = decoupled.flatten(1) if self.atmoe is None else self.atmoe(decoupled)

        heads = tuple(self.heads[name](feature) for name, feature in features.items())
        slimming = None if tokens.places is None else self._describe_slimming(tokens.places)
        return ModelOutput(heads, evidence_logits, selection=selection or slimming, slimming=slimming)

    def _describe(
        self, results: Sequence[AggregatedTokens], places: PerModality[PatchPlaces] | None
    ) -> Selection:
        """What SDTPS decided, with the places of the patches in the image; what is not left has score 0."""
        kept = PerModality(*(result.kept for result in results))
        scores = PerModality(*(result.scores.detach() for result in results))
        sources = PerModality(*(result.sources.detach() for result in results))
        if places is not None:
            positions = places.map(lambda place: place.positions)
            kept = PerModality(*(p.gather(1, k) for p, k in zip(positions, kept, strict=True)))
            scores = PerModality(*map(self._on_grid, scores, positions))
            sources = PerModality(*map(self._on_grid, sources, positions))
        weights = PerModality(*(result.weights.detach() for result in results))
        return Selection(kept, scores, sources, weights, self.backbone.grid)

    def _describe_slimming(self, places: PerModality[PatchPlaces]) -> Selection:
        kept, scores = places.map(lambda place: place.positions), places.map(lambda place: place.scores)
        return Selection(
            kept,
            scores,
            sources=scores.map(lambda score: score.new_zeros(len(score), 0, score.shape[1])),
            weights=kept.map(lambda rows: rows.new_zeros(len(rows), 0, rows.shape[1], dtype=torch.float)),
            grid=self.backbone.grid,
        )

    def _on_grid(self, values: Tensor, positions: Tensor) -> Tensor:
        """Values of the patches that are left, (B, ..., n), at their positions in the image, (B, ..., N)."""
        rows, columns = self.backbone.grid
        index = positions if values.dim() == 2 else positions.unsqueeze(1).expand_as(values)
        return values.new_zeros(*values.shape[:-1], rows * columns).scatter(-1, index, values)

    def _gather(self, features: Tensor) -> Tensor:
        """In training by several processes, the features of the whole batch, ahead of batch normalisation."""
        return features if self.gather_batch is None or not self.training else self.gather_batch(features)

    def _embedding_ids(self, batch: ModalBatch) -> Tensor:
        """Row of the camera embedding for each sample: camera, view, or camera and view, (B,)."""
        if not self.num_views:
            return batch.camera_ids
        rows = batch.scene_ids + (self.num_views * batch.camera_ids if self.use_cameras else 0)
        # An unseen view must not run into the rows of the next camera.
        return rows.masked_fill(batch.scene_ids >= self.num_views, BEYOND_THE_TABLE)

    def _original_features(self, globals_: PerModality[Tensor]) -> dict[str, Tensor]:
        """The features of the heads that sit directly on the backbone, by head name."""
        if "ori" in self.heads:
            return {"ori": torch.cat(globals_, dim=1)}
        return {f"ori_{m.key}": globals_.of(m) for m in Modality}


def _split(tensor: Tensor) -> PerModality[Tensor]:
    """(3B, ...) -> (B, ...) of each modality."""
    return PerModality(*tensor.chunk(len(Modality)))
