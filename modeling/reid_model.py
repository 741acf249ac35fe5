"""The whole network: backbone, PIFE, then for each branch its features and a head."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from modeling.absence import AbsentTokens, ImageRows, encode_present
from modeling.backbone import Backbone, EncodedImages
from modeling.branches import Branch
from modeling.gate import ModalityGate
from modeling.heads import BNNeckHead
from modeling.pife import PIFE
from structures import ModalBatch, Modality, ModalTokens, ModelOutput, PerModality, Selection, SlimmedPatches

BEYOND_THE_TABLE = 1 << 30
"""A row that no camera embedding has."""

OPTIONAL_TOKENS = frozenset({"images", "attended", "rollout"})
"""Fields of `ModalTokens` that are None unless a branch needs them."""

Gather = Callable[[Tensor], Tensor]
"""Joins the parts of a batch that several processes have, (B / size, …) each, to (B, …), with gradient."""


def _as_it_is(features: Tensor) -> Tensor:
    return features


class MultiModalReID(nn.Module):
    """Images -> tokens -> branches -> heads.

    Args:
        backbone: shared by the three modalities.
        branches: by name; the name is that of the head, of its losses and of its part in a checkpoint.
        num_classes: number of training identities.
        pife: joins globals and patches before the branches; None to leave the class tokens as they are.
        num_views: how many views share one camera in the camera embedding; 0 without view embedding.
        use_cameras: whether the camera embedding distinguishes cameras.
        modalities: M of them; the images of others are not looked at.
        absent: what becomes of an absent image: `zeros` go through the backbone, as in DeMo, or `skip`: it is
            not encoded, and its tokens do not count.
        absent_tokens: with `skip`, stand in for the tokens of absent images.
        gate: weighs the images of a triple before the branches; None to take them as they are.
    """

    def __init__(
        self,
        *,
        backbone: Backbone,
        branches: Mapping[str, Branch],
        num_classes: int,
        pife: PIFE | None = None,
        num_views: int = 0,
        use_cameras: bool = True,
        modalities: Sequence[Modality] = tuple(Modality),
        absent: str = "zeros",
        absent_tokens: AbsentTokens | None = None,
        gate: ModalityGate | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.pife = pife
        self.branches = nn.ModuleDict(branches)
        self.heads = nn.ModuleDict(_make_heads(branches, num_classes))
        # What the branches need besides globals and patches.
        self.needs = frozenset().union(*(branch.needs for branch in branches.values()))
        if unknown := self.needs - OPTIONAL_TOKENS:
            raise ValueError(f"branches need {sorted(unknown)}; choose from {sorted(OPTIONAL_TOKENS)}")
        backbone.read_attention(self.needs)
        self.num_views = num_views
        self.use_cameras = use_cameras
        self.modalities = tuple(modalities)
        self.skips = absent == "skip"
        self.absent_tokens = absent_tokens
        self.gate = gate

    @property
    def selects(self) -> bool:
        """Whether the output has a `Selection`: a branch selects patches, or slimming merges some."""
        branches = cast("Iterable[Branch]", self.branches.values())
        return self.backbone.slimming is not None or any(branch.selects for branch in branches)

    def forward(self, batch: ModalBatch, gather: Gather = _as_it_is) -> ModelOutput:
        """Encode B triples; the same path in training and evaluation.

        Args:
            batch: the triples; with several processes, this one's part.
            gather: in training with several processes, joins their features, so that every process has the
                heads' outputs of the whole batch and the result does not depend on their number.
        """
        return self.fuse(self.encode(batch), gather, batch.person_ids)

    def encode(self, batch: ModalBatch) -> ModalTokens:
        """The first half of `forward`: all modalities in one call of the backbone."""
        return self._without_absent(self._encode_all(batch), self._present(batch))

    def _encode_all(self, batch: ModalBatch) -> ModalTokens:
        """The tokens of the images, before anything stands in for those that are absent."""
        return self._as_tokens(self.encode_images(batch, skip=self.skips), batch.images, self.by_modality)

    def encode_images(self, batch: ModalBatch, *, skip: bool) -> EncodedImages:
        """What the backbone makes of M * B images, one modality after the other, in one call.

        With `skip` it leaves out those that are absent.
        """
        images, present = ([part.of(m) for m in self.modalities] for part in (batch.images, batch.present))
        ids = self._embedding_ids(batch).repeat(len(self.modalities))
        size = batch.person_ids.shape[0]  # unlike len, for any batch in an export
        counts = tuple(size if m in self.modalities else 0 for m in Modality)
        rows = ImageRows(torch.cat(images), ids, counts, torch.stack(present))
        return encode_present(self.backbone, rows) if skip else self.backbone(*rows[:3])

    def by_modality(self, tensor: Tensor) -> PerModality[Tensor]:
        """(M * B, …) -> (B, …) of each modality; zeros for one that the model does not have."""
        parts = tensor.unflatten(0, (len(self.modalities), -1))  # unlike chunk, for any batch in an export
        return PerModality.build(
            lambda m: parts[self.modalities.index(m)] if m in self.modalities else torch.zeros_like(parts[0])
        )

    def _present(self, batch: ModalBatch, missing: Sequence[Modality] = ()) -> PerModality[Tensor] | None:
        """Whose tokens count without the `missing` modalities, (B,) of each; None if all do."""
        if not self.skips and len(self.modalities) == len(Modality):
            return None

        def counts(modality: Modality) -> Tensor:
            there = batch.present.of(modality)
            if modality not in self.modalities or (self.skips and modality in missing):
                return torch.zeros_like(there)
            return there if self.skips else torch.ones_like(there)

        return PerModality.build(counts)

    def _without_absent(self, tokens: ModalTokens, present: PerModality[Tensor] | None) -> ModalTokens:
        """Zeros or learned tokens in place of those that do not count."""
        if present is None:
            return tokens
        tokens = tokens.emptied(present)  # of attention and images, too: nothing of an absent image is seen
        if self.absent_tokens is None:
            return tokens
        filled = self.absent_tokens(tokens, present)
        if len(self.modalities) == len(Modality):
            return replace(filled, present=None)
        # The learned tokens count, and a modality that the model does not have stays empty. Not by full_like,
        # which the count of multiply-adds cannot trace.
        ones, zeros = present.map(torch.ones_like), present.map(torch.zeros_like)
        counts = PerModality.build(lambda m: (ones if m in self.modalities else zeros).of(m))
        return replace(filled, present=counts)

    def _as_tokens(
        self,
        encoded: EncodedImages,
        images: PerModality[Tensor],
        split: Callable[[Tensor], PerModality[Tensor]],
    ) -> ModalTokens:
        """What the backbone gave, by modality."""
        globals_ = split(encoded.globals_)
        slimmed = None
        if encoded.slimmed is not None:
            indices, scores = split(encoded.slimmed.indices), split(encoded.slimmed.scores)
            slimmed = PerModality(*map(SlimmedPatches, indices, scores))
        return ModalTokens(
            globals_,
            split(encoded.patches),
            globals_,
            self.backbone.grid,
            slimmed=slimmed,
            attended=None if encoded.attended is None else split(encoded.attended),
            rollout=None if encoded.rollout is None else split(encoded.rollout),
            images=images if "images" in self.needs else None,
        )

    def forward_conditions(
        self, batch: ModalBatch, conditions: Mapping[str, Sequence[Modality]]
    ) -> dict[str, ModelOutput]:
        """What `forward` gives without some of the modalities, under several such conditions.

        The backbone sees each modality by itself, so that the images are encoded once for all conditions.

        Args:
            batch: complete, as far as the data set is.
            conditions: by any name, the modalities that are missing.
        """
        tokens = self._encode_all(batch)
        absent = tokens
        if any(conditions.values()) and not self.skips:
            absent = self._encode_missing(batch)
        return {
            name: self.fuse(
                self._without_absent(tokens.replaced(missing, by=absent), self._present(batch, missing))
            )
            for name, missing in conditions.items()
        }

    def _encode_missing(self, batch: ModalBatch) -> ModalTokens:
        """The tokens that `encode` would give if all images of the batch were missing.

        They depend on the camera alone, so that each camera of the batch is encoded once; or once for each
        modality, if the backbone tells them apart.
        """
        ids, sample_ids = self._embedding_ids(batch).unique(return_inverse=True)
        images = torch.zeros_like(batch.images.rgb)
        times = len(Modality) if self.backbone.tells_modalities_apart else 1
        blank = images[: len(ids)].repeat(times, 1, 1, 1)
        encoded = self.backbone(blank, ids.repeat(times), counts=[len(ids)] * times)

        def shared(tensor: Tensor) -> PerModality[Tensor]:
            by_modality = tensor.unflatten(0, (times, -1)).expand(len(Modality), *[-1] * tensor.dim())
            return PerModality(*(rows[sample_ids] for rows in by_modality))

        return self._as_tokens(encoded, PerModality(images, images, images), shared)

    def fuse(
        self, tokens: ModalTokens, gather: Gather = _as_it_is, person_ids: Tensor | None = None
    ) -> ModelOutput:
        """The second half of `forward`: from the backbone's tokens to the heads.

        Args:
            tokens: of B triples; with several processes, this one's part.
            gather: see `forward`.
            person_ids: (B,) labels of the same triples; only training needs them.
        """
        # What all branches share.
        if self.pife is not None:
            tokens = replace(tokens, globals_=self.pife(tokens.globals_, tokens.patches))
            if tokens.present is not None:
                tokens = tokens.emptied(tokens.present)
        if self.gate is not None:
            tokens = self.gate(tokens)
        # Each branch, on this process's triples; its head, on those of all processes.
        heads = []
        losses: dict[str, Tensor] = {}
        selections: dict[str, Selection] = {}
        for name, branch in cast("Mapping[str, Branch]", self.branches).items():
            output = branch(tokens)
            head = self.heads[branch.shared_head or name]
            found = head(branch.finish(gather(output.features)), name, branch.role)
            heads.append(replace(found, parts=branch.parts))
            # Its losses: means over its triples, and those that compare the triples of the whole batch.
            own = _join_losses(output.losses, gather)
            if self.training and output.rows:
                assert person_ids is not None, "losses over the whole batch need its labels"
                rows = {key: gather(part) for key, part in output.rows.items()}
                own |= branch.batch_losses(rows, gather(person_ids))
            losses |= {f"{name}/{loss}": value for loss, value in own.items()}
            if output.selection is not None:
                selections[name] = output.selection
        # Slimming counts as a selection of the backbone.
        if tokens.slimmed is not None:
            left = tokens.slimmed
            selections["slimming"] = Selection(
                kept=left.map(lambda patches: patches.indices),
                scores=left.map(lambda patches: patches.scores),
                grid=tokens.grid,
            )
        return ModelOutput(tuple(heads), losses, selections)

    def _embedding_ids(self, batch: ModalBatch) -> Tensor:
        """Row of the camera embedding for each sample: camera, view, or camera and view, (B,)."""
        if not self.num_views:
            return batch.camera_ids
        rows = batch.scene_ids + (self.num_views * batch.camera_ids if self.use_cameras else 0)
        # An unseen view must not run into the rows of the next camera.
        return rows.masked_fill(batch.scene_ids >= self.num_views, BEYOND_THE_TABLE)


def _join_losses(losses: Mapping[str, Tensor], gather: Gather) -> dict[str, Tensor]:
    """Losses of this process's triples -> the means over all processes, with the gradient of the own part."""
    if not losses:
        return {}
    parts = gather(torch.stack(list(losses.values())).unsqueeze(0))  # one row per process
    return dict(zip(losses, parts.mean(dim=0), strict=True))


def _make_heads(branches: Mapping[str, Branch], num_classes: int) -> dict[str, BNNeckHead]:
    """The heads by name: one for each branch, or for those that share one."""
    kinds: dict[str, tuple[int, bool]] = {}
    for name, branch in branches.items():
        head, kind = branch.shared_head or name, (branch.out_dim, branch.train_neck_bias)
        if kinds.setdefault(head, kind) != kind:
            raise ValueError(f"the branches that share the head {head!r} must agree in width and neck bias")
    return {
        head: BNNeckHead(dim, num_classes, train_neck_bias=learns) for head, (dim, learns) in kinds.items()
    }
