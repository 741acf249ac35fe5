from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from config import load_config
from conftest import SMALL_MODEL
from errors import UserError
from modeling.backbone.trunk import create_vit
from modeling.backbone.tuning import TUNES, Beside, LowRank, Tuning, tune_trunk
from modeling.make_model import make_model
from modeling.reid_model import MultiModalReID
from modeling.weights import frozen_entries
from solver.losses import ReIDLoss
from solver.optimizer import build_optimizer, parameter_groups
from structures import ModalBatch, Modality, PerModality

LORA_EACH = {"MODEL.TUNE": "lora", "MODEL.ADAPTER_SHARED": False, "MODEL.TUNE_RANK": 2}
ADAPTER = {"MODEL.TUNE": "adapter", "MODEL.TUNE_RANK": 4}
ADAPTER_EACH = {**ADAPTER, "MODEL.ADAPTER_SHARED": False}
PARTS = {
    "adapter": ADAPTER,
    "adapters": ADAPTER_EACH,
    "lora": {**LORA_EACH, "MODEL.ADAPTER_SHARED": True},
    "loras": LORA_EACH,
}


def build(*options: dict[str, Any]) -> MultiModalReID:
    """The small model on images of 4 x 2 patches, with the same weights each time."""
    cfg = load_config(SMALL_MODEL, ["INPUT.SIZE_TRAIN", "[32, 16]", "INPUT.SIZE_TEST", "[32, 16]"]).clone()
    cfg.defrost()
    for pairs in ({"MODEL.SIE_CAMERA": True}, *options):
        cfg.merge_from_list([item for pair in pairs.items() for item in pair])
    torch.manual_seed(0)
    return make_model(cfg, 4, 2)


def make_triples(size: int) -> ModalBatch:
    """Random triples of two people each, seen by two cameras."""
    generator = torch.Generator().manual_seed(0)
    images = PerModality.build(lambda _: torch.randn(size, 3, 32, 16, generator=generator))
    rows = torch.arange(size)
    return ModalBatch(images, person_ids=rows // 2, camera_ids=rows % 2, scene_ids=torch.zeros_like(rows))


def awaken(model: nn.Module) -> None:
    """Give the weights that start at 0 other values, so that adapters and LoRA do something."""
    generator = torch.Generator().manual_seed(7)
    for name, parameter in model.named_parameters():
        if ".up." in name:
            parameter.data = torch.randn(parameter.shape, generator=generator)


def same_trunk(model: MultiModalReID) -> MultiModalReID:
    """A model without tuning and the same weights otherwise."""
    plain = build()
    plain.load_state_dict({n: t for n, t in model.state_dict().items() if ".tuning." not in n})
    return plain


def train(model: MultiModalReID, steps: int) -> torch.optim.Optimizer:
    """A few steps with a weight decay that nothing with a gradient survives unchanged."""
    groups = parameter_groups(
        model,
        base_lr=1e-2,
        backbone_lr=1e-3,
        bias_lr_factor=1.0,
        weight_decay=0.1,
        weight_decay_bias=0.1,
        large_fc_lr=False,
    )
    optimizer = build_optimizer("AdamW", groups, momentum=0.9)
    criterion, batch = (
        ReIDLoss(id_weight=1.0, triplet_weight=1.0, label_smoothing=0.0, margin=None),
        make_triples(4),
    )
    model.train()
    for _ in range(steps):
        output = model(batch)
        optimizer.zero_grad(set_to_none=True)
        torch.stack(list(criterion(output, batch.person_ids).values())).sum().backward()
        optimizer.step()
    return optimizer


def fill(layer: nn.Linear, weight: list[list[float]], bias: list[float] | None = None) -> None:
    layer.weight.data = torch.tensor(weight)
    if bias is not None:
        layer.bias.data = torch.tensor(bias)


def test_lora_by_hand() -> None:
    """down (1, 2) gives 1·3 + 2·4 = 11, up (5, -1, 0) and the scale 2 give (110, -22, 0)."""
    lora = LowRank(2, 3, rank=1, scale=2.0, bottleneck=False)
    fill(lora.down, [[1.0, 2.0]])
    fill(lora.up, [[5.0], [-1.0], [0.0]])
    assert lora(torch.tensor([[[3.0, 4.0]]])).tolist() == [[[110.0, -22.0, 0.0]]]


def test_adapter_by_hand() -> None:
    """down gives 3 − 4 + 1 = 0 and 3 + 4 − 6 = 1; GELU(0) = 0, GELU(1) = 0.8413; up adds 0.5."""
    adapter = LowRank(2, 1, rank=2, scale=10.0, bottleneck=True)
    fill(adapter.down, [[1.0, -1.0], [1.0, 1.0]], [1.0, -6.0])
    fill(adapter.up, [[100.0, 1.0]], [0.5])
    assert adapter(torch.tensor([[[3.0, 4.0]]])).item() == pytest.approx(10 * (0.841345 + 0.5), rel=1e-5)


def test_lora_reaches_queries_and_values_and_not_keys() -> None:
    """q, k and v of one fused layer are 1, 2 and 3 times x; LoRA adds 10 x to q and 20 x to v."""
    vit: Any = nn.Module()
    block: Any = nn.Module()
    block.attn = nn.Module()
    block.attn.qkv = nn.Linear(1, 3, bias=False)
    fill(block.attn.qkv, [[1.0], [2.0], [3.0]])
    vit.blocks, vit.embed_dim = nn.ModuleList([block]), 1
    tuning: Any = tune_trunk(vit, "lora", rank=1)
    for part, factor in ((tuning[0].q, 10.0), (tuning[0].v, 20.0)):
        fill(part["shared"].down, [[factor]])
        fill(part["shared"].up, [[1.0]])
    assert block.attn.qkv(torch.tensor([[[1.0], [2.0]]])).tolist() == [[[11.0, 2.0, 23.0], [22.0, 4.0, 46.0]]]


def test_each_modality_has_its_own() -> None:
    """One RGB image, none of NI, two of TI; all are 1, and the maps multiply by 2, 3 and 5."""
    own = Beside(1, 1, shared=False, rank=1, scale=1.0, bottleneck=False)
    for factor, name in zip((2.0, 3.0, 5.0), own, strict=True):
        fill(own[name].down, [[factor]])  # type: ignore[arg-type]
        fill(own[name].up, [[1.0]])  # type: ignore[arg-type]
    own.counts = (1, 0, 2)
    output: Tensor = own(torch.ones(3, 1, 1))
    assert output.flatten().tolist() == [2.0, 5.0, 5.0]
    output.sum().backward()
    assert own["ni"].down.weight.grad.tolist() == [[0.0]]  # type: ignore[union-attr,operator]


@pytest.mark.parametrize("options", PARTS.values(), ids=list(PARTS))
@pytest.mark.parametrize("slim", [{}, {"MODEL.SLIM_LAYERS": [1, 2]}], ids=["whole", "slimmed"])
@torch.no_grad()
def test_training_starts_at_the_output_of_the_trunk_bit_for_bit(
    options: dict[str, Any], slim: dict[str, Any]
) -> None:
    model = build(options, slim).eval()
    plain = build(slim).eval()
    plain.load_state_dict(same_trunk(model).state_dict())
    batch = make_triples(2)
    before, after = plain.encode(batch), model.encode(batch)
    for expected, found in ((before.globals_, after.globals_), (before.patches, after.patches)):
        assert all(map(torch.equal, expected, found))
    awaken(model)
    assert not torch.allclose(model.encode(batch).globals_.rgb, before.globals_.rgb, atol=1e-2)


@pytest.mark.parametrize("kind", TUNES)
def test_what_learns(kind: str) -> None:
    """Frozen weights stay as they are, bit for bit, without gradient and optimiser state; all else learns."""
    model = build({"MODEL.TUNE": kind, "MODEL.ADAPTER_SHARED": False, "MODEL.TUNE_RANK": 2})
    frozen = frozen_entries(model)
    trunk = {name for name in model.state_dict() if name.startswith("backbone.vit.")}
    biases = {name for name in trunk if name.endswith("bias")}
    assert frozen == {"full": set(), "bias": trunk - biases}.get(kind, trunk)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimizer = train(model, steps=3)
    after = model.state_dict()
    unchanged = {name for name in before if torch.equal(before[name], after[name])}
    # The bias of a BNNeck is 0 and frozen; keys have no use for a bias, nor the last position for its token.
    assert frozen <= unchanged
    learnt = {name for name, p in model.named_parameters() if p.requires_grad}
    assert not unchanged & learnt
    assert all(p.grad is None for name, p in model.named_parameters() if name in frozen)
    held = {id(parameter) for parameter in optimizer.state}
    assert held == {id(p) for name, p in model.named_parameters() if name in learnt}


@pytest.mark.parametrize("options", [ADAPTER_EACH, LORA_EACH], ids=["adapter", "lora"])
def test_a_copy_has_its_own_adapters(options: dict[str, Any]) -> None:
    """As the moving average and the untrained control are copies."""
    model = build(options).eval()
    batch = make_triples(2)
    copy = deepcopy(model)
    expected = copy.encode(batch).globals_.rgb
    awaken(model)
    assert torch.equal(copy.encode(batch).globals_.rgb, expected)
    assert not torch.allclose(model.encode(batch).globals_.rgb, expected, atol=1e-2)
    awaken(copy)
    assert torch.equal(model.encode(batch).globals_.rgb, copy.encode(batch).globals_.rgb)


@torch.no_grad()
def test_shared_adapters_treat_modalities_alike_and_others_do_not() -> None:
    batch = make_triples(1)
    images = batch.images.rgb
    batch = replace(batch, images=PerModality.build(lambda _: images))
    for options, alike in ((ADAPTER, True), (ADAPTER_EACH, False)):
        model = build(options).eval()
        awaken(model)
        rgb, _, ti = model.encode(batch).globals_
        assert torch.allclose(rgb, ti, atol=1e-5) is alike


@torch.no_grad()
def test_a_missing_modality_has_its_own_adapter() -> None:
    """Conditions are encoded in one pass, and each alone."""
    model = build(ADAPTER_EACH).eval()
    awaken(model)
    batch = make_triples(3)
    missing = (Modality.NI, Modality.TI)
    found = model.forward_conditions(batch, {"nt": missing})["nt"]
    expected = model(batch.without(missing))
    torch.testing.assert_close(found.embedding(3), expected.embedding(3), atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_images_that_are_skipped_leave_the_others_their_adapters() -> None:
    """Triples that lack different modalities: the backbone sees another number of images of each."""
    model = build(ADAPTER_EACH, {"TEST.ABSENT": "skip"}).eval()
    awaken(model)
    batch = make_triples(2)
    present = PerModality.build(lambda m: torch.tensor([m is not Modality.NI, m is not Modality.TI]))
    found, whole = model.encode(replace(batch, present=present)), model.encode(batch)
    torch.testing.assert_close(found.globals_.rgb, whole.globals_.rgb, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.globals_.ni[1], whole.globals_.ni[1], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.globals_.ti[0], whole.globals_.ti[0], atol=1e-5, rtol=1e-5)
    assert not found.globals_.ni[0].any()


def test_blocks_that_are_computed_twice_have_the_same_gradients() -> None:
    gradients = []
    for switch in (False, True):
        model = build(ADAPTER_EACH, {"SOLVER.GRAD_CHECKPOINT": switch, "MODEL.SIE_CAMERA": False})
        awaken(model)
        torch.stack(list(model.train().encode(make_triples(2)).globals_)).square().sum().backward()
        gradients.append([p.grad for name, p in model.named_parameters() if ".tuning." in name])
    assert len(gradients[0]) == 4 * 3 * 4  # blocks, modalities, weights and biases
    assert all(map(torch.equal, *gradients))


@torch.no_grad()
def test_a_triple_does_not_depend_on_the_others() -> None:
    model = build(LORA_EACH, {"MODEL.SLIM_LAYERS": [2]}).eval()
    awaken(model)
    batch = make_triples(3)
    images, ids, cameras, scenes = batch.images, batch.person_ids, batch.camera_ids, batch.scene_ids
    second = ModalBatch(images.map(lambda each: each[1:2]), ids[1:2], cameras[1:2], scenes[1:2])
    alone = model(second).embedding(3)
    torch.testing.assert_close(model(batch).embedding(3)[1:2], alone, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_class_attention_is_read_with_lora() -> None:
    options = {"MODEL.SDTPS_GUIDE": "attention"}
    model = build(LORA_EACH, options).eval()
    batch = make_triples(2)
    before = model.encode(batch).attended
    awaken(model)
    after = model.encode(batch).attended
    assert before is not None
    assert after is not None
    assert not torch.allclose(before.rgb, after.rgb, atol=1e-3)


def test_rates() -> None:
    groups = parameter_groups(
        build(ADAPTER),
        base_lr=1.0,
        backbone_lr=0.01,
        bias_lr_factor=2.0,
        weight_decay=0.1,
        weight_decay_bias=0.0,
        large_fc_lr=False,
    )
    assert {group["name"]: group["lr"] for group in groups} == {
        "heads + tuning": 1.0,
        "tuning bias + heads bias": 2.0,
    }


def make_short(name: str) -> tuple[Any, Tensor]:
    """A ViT of timm with two blocks, the same each time, and images for it."""
    size = (56, 28) if "14" in name else (64, 32)
    images = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    vit: Any = timm.create_model(name, num_classes=0, img_size=size, depth=2, embed_dim=64, num_heads=2)
    for block in vit.blocks:
        if getattr(block, "gamma_1", None) is not None:  # the layer scale of DINOv3 starts at 1e-5
            nn.init.ones_(block.gamma_1)
    return vit.eval(), images


@pytest.mark.parametrize(
    "name",
    [
        "vit_small_patch16_dinov3",
        "vit_small_patch16_dinov3_qkvb",
        "eva02_base_patch14_224",
        "vit_tiny_patch16_224",
    ],
)
@torch.no_grad()
def test_trunks_of_both_families(name: str) -> None:
    """Adapters fit all; LoRA fits separate projections and the plain fused one."""
    vit, images = make_short(name)
    expected = vit.forward_features(images)
    for kind in ("adapter", "lora"):
        vit, _ = make_short(name)
        if kind == "lora" and name.endswith("qkvb"):
            with pytest.raises(UserError, match=r"adds the biases of a fused.*choose MODEL\.TUNE adapter"):
                tune_trunk(vit, kind)
            continue
        tuning = tune_trunk(vit, kind, rank=2)
        assert isinstance(tuning, Tuning)
        assert len(tuning) == 2
        assert torch.equal(vit.forward_features(images), expected)
        awaken(tuning)
        assert not torch.equal(vit.forward_features(images), expected)


@pytest.mark.parametrize(
    "name",
    [
        "vit_small_patch16_dinov3",
        "eva02_base_patch14_224",
        "vit_small_patch16_rope_224",
        "vit_tiny_patch16_224",
    ],
)
@torch.no_grad()
def test_lora_equals_a_trunk_with_the_product_in_its_weights(name: str) -> None:
    """W x + s U D x is (W + s U D) x, for queries and values alone; rotations follow."""
    (tuned, images), (merged, _) = make_short(name), make_short(name)
    tuning: Any = tune_trunk(tuned, "lora", rank=2, scale=0.5)
    awaken(tuning)
    for own, block in zip(tuning, merged.blocks, strict=True):
        change = {
            n: 0.5 * part["shared"].up.weight @ part["shared"].down.weight for n, part in own.named_children()
        }
        if getattr(block.attn, "qkv", None) is not None:
            nothing = torch.zeros_like(change["q"])
            block.attn.qkv.weight += torch.cat([change["q"], nothing, change["v"]])
        else:
            block.attn.q_proj.weight += change["q"]
            block.attn.v_proj.weight += change["v"]
    untuned = make_short(name)[0].forward_features(images)
    features = tuned.forward_features(images)
    torch.testing.assert_close(features, merged.forward_features(images), atol=1e-4, rtol=1e-4)
    assert (features - untuned).abs().max() > 0.01  # the comparison would see a part that is not added


def test_misfits() -> None:
    with pytest.raises(ValueError, match="unknown kind of tuning 'prompt'"):
        tune_trunk(nn.Module(), "prompt")
    vit = create_vit("vit_tiny_stem_patch8", img_size=(32, 16), stride=(8, 8))
    vit.blocks = nn.Sequential(nn.Identity())
    with pytest.raises(UserError, match=r"no MLP of their own; choose MODEL\.TUNE lora"):
        tune_trunk(vit, "adapter")
    with pytest.raises(UserError, match="no projection of queries and values"):
        tune_trunk(vit, "lora")
