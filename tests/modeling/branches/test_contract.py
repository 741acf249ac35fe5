"""What a branch may ask for and give, beside features: inputs, losses over the whole batch, a shared head."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from config import load_config
from conftest import SMALL_MODEL
from engine.distributed import World
from modeling.backbone.attention import AttentionReader, attention_layers
from modeling.branches import Branch
from modeling.make_model import make_model
from modeling.reid_model import MultiModalReID
from structures import BranchOutput, ModalBatch, Modality, ModalTokens, PerModality, Role, Selection

MakeBatch = Callable[..., ModalBatch]
SIZE = (32, 16)
PLAIN = [
    "MODEL.USE_SDTPS",
    "False",
    "MODEL.HDM",
    "False",
    "MODEL.ATM",
    "False",
    "MODEL.GLOBAL_LOCAL",
    "False",
]


class Contrast(Branch):
    """One linear map; tells its triples apart by a contrast over the whole batch, and counts identities."""

    def __init__(self, dim: int, needs: Collection[str] = (), *, head: str = "", fused: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, 6)
        self.temperature = nn.Parameter(torch.tensor(0.5))
        self.register_buffer("seen", torch.zeros(8))
        self.out_dim = 6
        self.needs = needs
        self.shared_head = head
        self.train_neck_bias = True
        self.role = Role.FUSED if fused else Role.AUXILIARY
        self.tokens: ModalTokens | None = None

    def forward(self, tokens: ModalTokens) -> BranchOutput:
        self.tokens = tokens
        first, second = self.linear(tokens.globals_.rgb), self.linear(tokens.globals_.ni)
        losses = {"length": first.square().mean()}
        return BranchOutput(first, losses, rows={"first": first, "second": second})

    def batch_losses(self, rows: dict[str, Tensor], person_ids: Tensor) -> dict[str, Tensor]:
        self.get_buffer("seen").index_add_(0, person_ids, torch.ones(len(person_ids)))
        logits = rows["first"] @ rows["second"].T / self.temperature
        return {"contrast": nn.functional.cross_entropy(logits, torch.arange(len(logits)))}


def build(*branches: Branch) -> MultiModalReID:
    """The small backbone with some branches, with the same weights each time."""
    torch.manual_seed(0)
    size = [word for key in ("TRAIN", "TEST") for word in (f"INPUT.SIZE_{key}", str(list(SIZE)))]
    cfg = load_config(SMALL_MODEL, [*PLAIN, *size, "MODEL.DROP_PATH", "0.0", "INPUT.PADDING", "2"])
    backbone = make_model(cfg, 8, 2).backbone
    names = dict(zip("abc", branches, strict=False))
    return MultiModalReID(backbone=backbone, branches=names, num_classes=8)


def build_contrast(needs: Collection[str] = ()) -> MultiModalReID:
    torch.manual_seed(1)
    return build(Contrast(64, needs))


def branch_of(model: MultiModalReID) -> Contrast:
    branch = model.branches["a"]
    assert isinstance(branch, Contrast)
    return branch


def test_a_branch_gets_what_it_needs_and_nothing_else(make_batch: MakeBatch) -> None:
    batch = make_batch([0, 1], SIZE)
    for needs in ((), ("images",), ("attended", "rollout")):
        model = build_contrast(needs).eval()
        model(batch)
        tokens = branch_of(model).tokens
        given = {name for name in ("images", "attended", "rollout") if getattr(tokens, name) is not None}
        assert given == set(needs)
    assert tokens is not None
    assert tokens.rollout is not None
    assert tokens.rollout.ti.shape == (2, 2, 8)  # two triples, two heads, eight patches
    with pytest.raises(ValueError, match=r"branches need \['labels'\]; choose from \['attended'"):
        build_contrast(["labels"])


def test_rollout_is_the_class_row_of_the_product_in_each_head(make_batch: MakeBatch) -> None:
    model = build_contrast(["rollout"]).eval()
    readers = [AttentionReader(layer) for layer in attention_layers(model.backbone.vit)]
    with torch.no_grad():
        rollout = model.encode(make_batch([0, 1], SIZE)).rollout
        product = readers[0].read(per_head=True)
        for reader in readers[1:]:
            product = reader.read(per_head=True) @ product
    assert rollout is not None
    torch.testing.assert_close(torch.cat(rollout), product[:, :, 0, 1:])
    assert not any(shares.requires_grad for shares in rollout)


def test_a_missing_modality_is_missing_in_all_inputs(make_batch: MakeBatch) -> None:
    model = build_contrast(["images", "attended", "rollout"]).eval()
    batch = make_batch([0, 1, 2], SIZE)
    seen = []
    with torch.no_grad():
        for run in (
            lambda: model.forward_conditions(batch, {"n": [Modality.NI]}),
            lambda: model(batch.without([Modality.NI])),
        ):
            run()
            seen.append(branch_of(model).tokens)
    for name in ("images", "attended", "rollout", "patches"):
        for ours, theirs in zip(getattr(seen[0], name), getattr(seen[1], name), strict=True):
            torch.testing.assert_close(ours, theirs)


def test_losses_over_the_batch_are_computed_in_training_alone(make_batch: MakeBatch) -> None:
    model, batch = build_contrast(), make_batch([3, 3, 5], SIZE)
    losses = model.train()(batch).losses
    assert list(losses) == ["a/length", "a/contrast"]
    assert branch_of(model).get_buffer("seen").tolist() == [0, 0, 0, 2, 0, 1, 0, 0]
    assert list(model.eval()(batch).losses) == ["a/length"]
    assert branch_of(model).get_buffer("seen").sum() == 3


def compute_losses(model: nn.Module, batch: ModalBatch, world: World) -> Tensor:
    """The branch's own losses, and one on the whole batch of the head."""
    output = model(batch, world.gather_batch)
    return torch.stack([*output.losses.values(), output.heads[0].logits.square().mean()])


def gradients_of_rank(rank: int, folder: Path, batch: ModalBatch) -> None:
    """One of two processes: the gradients that it ends with, in a file."""
    limit = timedelta(seconds=60)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2, timeout=limit
    )
    part = slice(2 * rank, 2 * rank + 2)
    images = batch.images.map(lambda tensor: tensor[part])
    own = ModalBatch(images, batch.person_ids[part], batch.camera_ids[part], batch.scene_ids[part])
    model = build_contrast().train()
    parallel = DistributedDataParallel(model)
    losses = compute_losses(parallel, own, World(rank, 2))
    losses.sum().backward()
    state = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    found = {**state, "seen": branch_of(model).get_buffer("seen"), "losses": losses.detach()}
    torch.save(found, folder / f"rank_{rank}.pth")
    dist.destroy_process_group()


def test_two_processes_have_the_losses_and_gradients_of_one(make_batch: MakeBatch, tmp_path: Path) -> None:
    batch = make_batch([3, 3, 5, 0], SIZE)
    mp.start_processes(gradients_of_rank, (tmp_path, batch), nprocs=2, start_method="spawn")
    model = build_contrast().train()
    losses = compute_losses(model, batch, World())
    losses.sum().backward()
    alone = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert alone["branches.a.temperature"] != 0
    for rank in (0, 1):
        found = torch.load(tmp_path / f"rank_{rank}.pth", weights_only=True)
        assert torch.equal(found.pop("seen"), branch_of(model).get_buffer("seen"))
        torch.testing.assert_close(found.pop("losses"), losses.detach())
        assert found.keys() == alone.keys()
        for name, gradient in alone.items():
            torch.testing.assert_close(found[name], gradient, atol=1e-6, rtol=1e-4)


def test_branches_may_share_a_head(make_batch: MakeBatch) -> None:
    model = build(Contrast(64, head="both"), Contrast(64, head="both"), Contrast(64)).train()
    assert set(model.heads) == {"both", "c"}
    output = model(make_batch([3, 3, 5], SIZE))
    assert [head.name for head in output.heads] == ["a", "b", "c"]
    assert model.get_buffer("heads.both.neck.num_batches_tracked") == 2  # one update for each branch
    assert model.get_parameter("heads.both.neck.bias").requires_grad
    other = Contrast(64, head="both")
    other.out_dim = 7
    with pytest.raises(ValueError, match="that share the head 'both' must agree in width and neck bias"):
        build(Contrast(64, head="both"), other)


def test_without_an_original_head_the_fused_features_are_all_there_is(make_batch: MakeBatch) -> None:
    model = build(Contrast(64, fused=False), Contrast(64)).eval()
    output = model(make_batch([3, 3, 5], SIZE))
    assert output.patterns == (2,)
    for pattern in (1, 2, 3):
        assert torch.equal(output.embedding(pattern), output.heads[1].features)


def test_kept_patches_as_indices_and_as_booleans_read_alike() -> None:
    indices = torch.tensor([[0, 3], [2, 1]])
    masks = torch.tensor([[True, False, False, True], [False, True, True, False]])
    scores = PerModality(*torch.rand(3, 2, 4))
    for kept in (indices, masks):
        selection = Selection(PerModality(kept, kept, kept), scores, (2, 2))
        assert torch.equal(selection.masks.ni, masks)
        assert [sorted(row.tolist()) for row in selection.indices.ti] == [[0, 3], [1, 2]]
    uneven = masks | torch.tensor([[False], [True]])
    selection = Selection(PerModality(uneven, uneven, uneven), scores, (2, 2))
    assert [row.tolist() for row in selection.indices.rgb] == [[0, 3], [0, 1, 2, 3]]
