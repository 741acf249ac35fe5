"""The trunks of both families beside timm's own forward, with slimming, at other sizes, and recomputed."""

from functools import partial
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from errors import UserError
from modeling.backbone import Backbone
from modeling.backbone.slimming import Slimming
from modeling.backbone.trunk import TIMM_NAMES, create_vit, keep_rotations, make_trunk

# By name: patch, prefix tokens, and the side of an image for which timm has the model.
MODELS = {
    "ViT-B-16": (16, 1, 224),  # CLIP
    "deit_small_patch16_224": (16, 1, 224),
    "vit_base_patch16_224": (16, 1, 224),
    "vit_small_patch8_224.dino": (8, 1, 224),
    "vit_small_patch14_dinov2": (14, 1, 518),
    "vit_small_patch14_reg4_dinov2": (14, 5, 518),
    "vit_small_patch16_dinov3": (16, 5, 256),
    "vit_base_patch16_dinov3": (16, 5, 256),
}
ROTARY = [
    "vit_small_patch16_dinov3",
    "eva02_tiny_patch14_224",
    "eva02_base_patch14_224",  # queries, keys and values apart, and a norm in the MLP
    "vit_small_patch16_rope_mixed_224",  # rotations that each head of each block learns
]


@pytest.fixture
def two_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of two blocks, for speed: a block is like any other."""
    monkeypatch.setattr(timm, "create_model", partial(timm.create_model, depth=2))


@torch.no_grad()
def fill(module: nn.Module) -> None:
    """Give every parameter a share in the result; timm starts some of them at zero or close to it."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in module.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        scale = "gamma" in name or ("norm" in name and name.endswith("weight"))
        parameter.copy_(1 + 0.1 * noise if scale else 0.04 * noise)


def make(name: str, size: tuple[int, int], **options: Any) -> Backbone:
    patch = MODELS[name][0] if name in MODELS else 14 if "14" in name else 16
    backbone = Backbone(name, img_size=size, **{"stride": (patch, patch), **options}).eval()
    fill(backbone.vit)
    return backbone


def random_images(count: int, size: tuple[int, int]) -> Tensor:
    return torch.randn(count, 3, *size, generator=torch.Generator().manual_seed(1))


def no_cameras(images: Tensor) -> Tensor:
    return torch.zeros(len(images), dtype=torch.long)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("two_blocks")
@torch.no_grad()
def test_tokens_are_those_of_timm(name: str) -> None:
    patch, num_prefix, side = MODELS[name]
    theirs: Any = timm.create_model(TIMM_NAMES.get(name, name), num_classes=0).eval()
    assert theirs.patch_embed.img_size == (side, side)
    fill(theirs)
    ours = make(name, (side, side))
    ours.vit.head = nn.Identity()  # CLIP's projection comes after `forward_features`
    ours.vit.load_state_dict(theirs.state_dict())
    images = random_images(1, (side, side))
    encoded = ours(images, no_cameras(images))
    expected = theirs.forward_features(images)
    assert expected[:, num_prefix:].std() > 0.1
    assert ours.trunk.num_prefix == num_prefix
    assert ours.grid == (side // patch, side // patch)
    torch.testing.assert_close(encoded.globals_, expected[:, 0], atol=1e-5, rtol=0)
    torch.testing.assert_close(encoded.patches, expected[:, num_prefix:], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("two_blocks")
@torch.no_grad()
def test_slimming_that_keeps_all_changes_nothing_at_256_x_128(name: str) -> None:
    patch, size = MODELS[name][0], (256, 128)
    whole = make(name, size)
    slim = make(name, size, slimming=Slimming(1.0), slim_layers=[1, 2])
    assert whole.grid == (256 // patch, 128 // patch)
    images = random_images(3, size)
    expected = whole(images, no_cameras(images))
    found = slim(images, no_cameras(images))
    assert expected.patches.shape == (3, whole.grid[0] * whole.grid[1], whole.dim)
    assert torch.isfinite(expected.globals_).all()
    torch.testing.assert_close(found.globals_, expected.globals_, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.patches, expected.patches, atol=1e-5, rtol=1e-5)


def test_rotations_of_a_grid_of_2_x_2_by_hand() -> None:
    """DINOv3 puts the middles of 2 rows and 2 columns at -1/2 and 1/2; a turn is 1 or, more slowly, 10."""
    sizes = {"patch_size": 4, "embed_dim": 8, "depth": 1, "num_heads": 1}
    vit = create_vit("vit_small_patch16_dinov3", img_size=(8, 8), stride=(4, 4), **sizes)
    _, rotations = make_trunk(vit).embed(torch.zeros(3, 3, 8, 8))
    kept = keep_rotations(rotations, torch.tensor([[0, 2, 3], [1, 2, 3], [0, 1, 3]]))
    assert kept is not None
    assert kept.shape == (3, 1, 3, 16)  # sines of 8 channels, then cosines
    slow_row, slow_column = kept[:, 0, :, 1], kept[:, 0, :, 3]
    near, far = -0.30902, 0.30902  # the sine of pi / 10, that is of half a position in a turn of 10
    rows = torch.tensor([[near, far, far], [near, far, far], [near, near, far]])
    columns = torch.tensor([[near, near, far], [far, near, far], [near, far, far]])
    torch.testing.assert_close(slow_row, rows, atol=1e-5, rtol=0)
    torch.testing.assert_close(slow_column, columns, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ROTARY)
@pytest.mark.usefixtures("two_blocks")
@torch.no_grad()
def test_a_patch_that_is_left_attends_as_if_the_others_were_hidden(name: str) -> None:
    """A block on some patches, against timm's block on all of them with a mask over the others."""
    trunk = make(name, (64, 48)).trunk
    tokens, rotations = trunk.embed(random_images(2, (64, 48)))
    indices = torch.tensor([[0, 2, 5, 11], [1, 2, 3, 10]])
    num_prefix = trunk.num_prefix
    places = torch.cat([torch.arange(num_prefix).expand(2, -1), num_prefix + indices], dim=1)
    left = tokens.gather(1, places.unsqueeze(2).expand(-1, -1, trunk.width))
    found = trunk.run_block(1, left, keep_rotations(rotations, indices))
    # The same with a mask, one image at a time.
    for image in range(2):
        visible = torch.zeros(tokens.shape[1], dtype=torch.bool)
        visible[places[image]] = True
        mask = visible.expand(len(visible), -1)
        own = rotations[1] if rotations is not None and rotations.dim() > 2 else rotations
        whole = trunk.blocks[1](tokens[image : image + 1], rope=own, attn_mask=mask)
        torch.testing.assert_close(found[image], whole[0, places[image]], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ROTARY)
@pytest.mark.usefixtures("two_blocks")
@torch.no_grad()
def test_the_block_after_slimming_gets_the_rotations_of_the_patches_that_are_left(name: str) -> None:
    backbone = make(name, (64, 48), slimming=Slimming(0.7), slim_layers=[1])
    given: list[Tensor] = []
    backbone.vit.blocks[1].register_forward_pre_hook(
        lambda _module, _inputs, named: given.append(named["rope"]), with_kwargs=True
    )
    images = random_images(3, (64, 48))
    left = backbone(images, no_cameras(images)).slimmed
    assert left is not None
    assert left.indices.shape == (3, 9)  # of 12
    assert left.indices.tolist() != [list(range(9))] * 3
    _, rotations = backbone.trunk.embed(images)
    assert rotations is not None
    own = rotations[1] if rotations.dim() > 2 else rotations.unsqueeze(0)  # (heads, N, D)
    for image, rope in enumerate(given[0]):
        assert rope.shape[1] == 9
        found, expected = (
            turns.movedim(1, 0).flatten(1).tolist() for turns in (rope, own[:, left.indices[image]])
        )
        assert sorted(found) == sorted(expected)


@pytest.mark.parametrize(
    ("name", "size", "stride", "grid", "seen"),
    [
        ("vit_small_patch16_dinov3", (64, 48), (12, 8), (5, 5), (64, 48)),  # (64 - 16) // 12 + 1, …
        ("vit_small_patch16_rope_mixed_ape_224", (64, 40), (16, 8), (4, 4), (64, 40)),
        ("vit_small_patch14_dinov2", (64, 32), (14, 14), (4, 2), (56, 28)),
        ("eva02_tiny_patch14_224", (64, 32), (14, 14), (4, 2), (56, 28)),
        ("eva02_tiny_patch14_224", (65, 32), (10, 12), (6, 2), (64, 26)),
    ],
)
@pytest.mark.usefixtures("two_blocks")
@torch.no_grad()
def test_steps_and_sizes_that_are_no_multiple_of_the_patch(
    name: str, size: tuple[int, int], stride: tuple[int, int], grid: tuple[int, int], seen: tuple[int, int]
) -> None:
    """Pixels beyond the last whole patch, below and on the right, are left out; nothing is padded."""
    backbone = make(name, size, stride=stride)
    assert backbone.grid == grid
    assert backbone.trunk.seen_size == seen
    images = random_images(1, size)
    patches = backbone(images, no_cameras(images)).patches
    assert patches.shape == (1, grid[0] * grid[1], backbone.dim)
    outside = images.clone()
    outside[:, :, seen[0] :], outside[:, :, :, seen[1] :] = 9.0, 9.0
    torch.testing.assert_close(backbone(outside, no_cameras(images)).patches, patches)


@pytest.mark.usefixtures("two_blocks")
@torch.no_grad()
def test_cameras_are_added_to_every_token_before_the_blocks() -> None:
    backbone = make("vit_small_patch16_dinov3", (32, 32), num_embeddings=3, embedding_factor=2.0)
    seen: list[Tensor] = []
    backbone.vit.blocks[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    backbone(random_images(1, (32, 32)).expand(2, -1, -1, -1), torch.tensor([0, 2]))
    assert backbone.camera_embed is not None
    expected = 2.0 * (backbone.camera_embed[2] - backbone.camera_embed[0])
    torch.testing.assert_close(seen[0][1] - seen[0][0], expected.expand(9, -1), atol=1e-5, rtol=1e-4)


def test_stochastic_depth_grows_with_the_block() -> None:
    with torch.device("meta"):
        backbone = Backbone("vit_small_patch16_dinov3", img_size=(32, 32), stride=(16, 16), drop_path=0.1)
    blocks: Any = backbone.vit.blocks
    assert blocks[6].drop_path1.drop_prob == pytest.approx(0.1 * 6 / 11)
    assert blocks[11].drop_path2.drop_prob == pytest.approx(0.1)


@pytest.mark.parametrize("slim", [False, True], ids=["attention", "slim"])
@pytest.mark.parametrize("name", ["vit_small_patch14_dinov2", "eva02_tiny_patch14_224"])
@pytest.mark.usefixtures("two_blocks")
def test_recomputed_blocks_give_the_same_gradients(name: str, slim: bool) -> None:
    """With all that is random: dropout and stochastic depth."""
    options: dict[str, Any] = {"drop_path": 0.5, "dropout": 0.1, "attention_dropout": 0.1}
    images = random_images(6, (56, 28))

    def train(recompute: bool) -> tuple[dict[str, Tensor], int]:
        slimming = {"slimming": Slimming(0.6), "slim_layers": [1]} if slim else {}
        backbone = make(name, (56, 28), recompute=recompute, **options, **slimming).train()
        backbone.read_attention({"attended"} if slim else {"attended", "rollout"})
        readers = [*backbone._readers.values(), *(backbone._rollout._readers if backbone._rollout else [])]
        calls: list[int] = []
        backbone.vit.blocks[0].register_forward_pre_hook(lambda *_: calls.append(1))
        torch.manual_seed(0)
        encoded = backbone(images, no_cameras(images))
        (encoded.globals_.square().mean() + encoded.patches.sin().mean()).backward()
        after = torch.rand(1)  # the generator goes on alike
        assert readers
        assert all(reader._query is None and reader._key is None for reader in readers)
        found = {n: p.grad for n, p in backbone.named_parameters() if p.grad is not None}
        return {**found, "after": after}, len(calls)

    (plain, once), (again, twice) = train(False), train(True)
    assert (once, twice) == (1, 2)
    assert plain.keys() == again.keys()
    assert any("attn" in name and gradient.abs().max() > 0 for name, gradient in plain.items())
    for entry, gradient in plain.items():
        assert torch.equal(gradient, again[entry]), entry


def test_nothing_is_recomputed_in_evaluation() -> None:
    backbone = Backbone("vit_tiny_stem_patch8", img_size=(16, 16), stride=(8, 8), recompute=True)
    calls: list[int] = []
    backbone.vit.blocks[0].register_forward_pre_hook(lambda *_: calls.append(1))
    images = random_images(1, (16, 16))
    backbone.eval()(images, no_cameras(images)).globals_.sum().backward()
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vit_base_patch16_dinov4", "nearest are vit_base_patch16_dinov3"),
        ("dinov2_vits14", "nearest are vit_base_patch14_dinov2"),  # as the authors call it
        ("DINOv3", "nearest are vit_7b_patch16_dinov3, vit_base_patch16_dinov3"),
        ("vit_medium_patch16_rope_reg1_gap_256", "has no class token"),
        ("vit_small_patch8_224.dinov9", r"tag that is unknown; timm has vit_small_patch8_224\.dino"),
    ],
)
def test_names_that_cannot_be_used(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        create_vit(name, img_size=(64, 32), stride=(16, 16))
