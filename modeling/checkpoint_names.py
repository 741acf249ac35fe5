"""Names of checkpoint entries elsewhere <-> names here, in both directions.

A rule pairs two templates; `{…}` stands for one part of a name between dots, `{path}` for any number of
parts, and is carried over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from torch import Tensor

from modeling.branches.demo import SUBSETS
from structures import Modality

DEMO_MODALITIES = {Modality.RGB: "rgb", Modality.NI: "nir", Modality.TI: "tir"}


class Rule(NamedTuple):
    """One correspondence between entries."""

    theirs: str  # template of the name elsewhere
    ours: str  # template of the name here
    to_ours: Callable[[Tensor], Tensor] = lambda tensor: tensor  # makes our tensor from theirs
    to_theirs: Callable[[Tensor], Tensor] = lambda tensor: tensor  # the inverse


CLIP_RULES = (
    Rule("class_embedding", "cls_token", lambda t: t.reshape(1, 1, -1), lambda t: t.reshape(-1)),
    Rule("positional_embedding", "pos_embed", lambda t: t.unsqueeze(0), lambda t: t.squeeze(0)),
    Rule("proj", "head.weight", lambda t: t.T.contiguous(), lambda t: t.T.contiguous()),
    Rule("conv1.weight", "patch_embed.proj.weight"),
    Rule("ln_pre.{entry}", "norm_pre.{entry}"),
    Rule("ln_post.{entry}", "norm.{entry}"),
    Rule("transformer.resblocks.{block}.ln_1.{entry}", "blocks.{block}.norm1.{entry}"),
    Rule("transformer.resblocks.{block}.ln_2.{entry}", "blocks.{block}.norm2.{entry}"),
    Rule("transformer.resblocks.{block}.attn.in_proj_{entry}", "blocks.{block}.attn.qkv.{entry}"),
    Rule("transformer.resblocks.{block}.attn.out_proj.{entry}", "blocks.{block}.attn.proj.{entry}"),
    Rule("transformer.resblocks.{block}.mlp.c_fc.{entry}", "blocks.{block}.mlp.fc1.{entry}"),
    Rule("transformer.resblocks.{block}.mlp.c_proj.{entry}", "blocks.{block}.mlp.fc2.{entry}"),
)
"""OpenAI's and open_clip's names of the visual tower -> timm's."""

AS_IT_IS = Rule("{path}", "{path}")
_IN_MLP = "blocks.{block}.mlp."

DINOV2_RULES = (
    Rule("register_tokens", "reg_token"),
    Rule(_IN_MLP + "w12.{entry}", _IN_MLP + "fc1.{entry}"),
    Rule(_IN_MLP + "w3.{entry}", _IN_MLP + "fc2.{entry}"),
    AS_IT_IS,
)
"""DINOv2's names -> timm's."""

EVA_RULES = (
    Rule(_IN_MLP + "w12.{entry}", _IN_MLP + "fc1.{entry}"),
    Rule(_IN_MLP + "w1.{entry}", _IN_MLP + "fc1_g.{entry}"),
    Rule(_IN_MLP + "w2.{entry}", _IN_MLP + "fc1_x.{entry}"),
    Rule(_IN_MLP + "w3.{entry}", _IN_MLP + "fc2.{entry}"),
    Rule(_IN_MLP + "ffn_ln.{entry}", _IN_MLP + "norm.{entry}"),
    Rule("blocks.{block}.attn.inner_attn_ln.{entry}", "blocks.{block}.attn.norm.{entry}"),
    AS_IT_IS,
)
"""Names of EVA-02 and EVA-CLIP -> timm's."""

DINOV3_RULES = (
    Rule("storage_tokens", "reg_token"),
    Rule("blocks.{block}.ls{number}.gamma", "blocks.{block}.gamma_{number}"),
    *EVA_RULES,
)
"""DINOv3's names -> timm's."""

VIT_RULES = (Rule("blocks.{block}.gamma_{number}", "blocks.{block}.ls{number}.gamma"), AS_IT_IS)
"""Names of DeiT III -> timm's; those of timm, ImageNet ViTs, DeiT and DINO stay as they are."""


def _transformers_rules(*, gated: bool) -> tuple[Rule, ...]:
    """Names of CLIP's vision tower, DINOv2, DINOv3 and ViT in the library `transformers` -> timm's.

    Queries, keys and values keep a projection each.

    Args:
        gated: whether the MLPs of DINOv3 are gated.
    """
    # What surrounds the blocks.
    rules = [
        Rule("embeddings.class_embedding", "cls_token", lambda t: t.reshape(1, 1, -1)),
        Rule("embeddings.position_embedding.weight", "pos_embed", lambda t: t.unsqueeze(0)),
        Rule("embeddings.position_embeddings", "pos_embed"),
        Rule("embeddings.register_tokens", "reg_token"),
        Rule("embeddings.patch_embedding.weight", "patch_embed.proj.weight"),
        Rule("embeddings.patch_embeddings.projection.{entry}", "patch_embed.proj.{entry}"),
        Rule("embeddings.patch_embeddings.{entry}", "patch_embed.proj.{entry}"),
        Rule("embeddings.{entry}", "{entry}"),
        Rule("pre_layrnorm.{entry}", "norm_pre.{entry}"),
        *(Rule(f"{n}.{{entry}}", "norm.{entry}") for n in ("post_layernorm", "layernorm", "norm")),
        Rule("visual_projection.weight", "head.weight"),
        Rule("classifier.{entry}", "head.{entry}"),
        Rule("pooler.dense.{entry}", "pre_logits.fc.{entry}"),
    ]
    # The blocks of CLIP, of DINOv2 and ViT, and of DINOv3.
    names = {
        "encoder.layers": {
            "layer_norm{number}": "norm{number}",
            "self_attn.out_proj": "attn.proj",
            "self_attn.{part}": "attn.{part}",
            "mlp.{layer}": "mlp.{layer}",
        },
        "encoder.layer": {
            "norm{number}": "norm{number}",
            "layernorm_before": "norm1",
            "layernorm_after": "norm2",
            "attention.attention.query": "attn.q_proj",
            "attention.attention.key": "attn.k_proj",
            "attention.attention.value": "attn.v_proj",
            "attention.output.dense": "attn.proj",
            "mlp.weights_in": "mlp.fc1",
            "mlp.weights_out": "mlp.fc2",
            "mlp.{layer}": "mlp.{layer}",
            "intermediate.dense": "mlp.fc1",
            "output.dense": "mlp.fc2",
        },
        "layer": {
            "norm{number}": "norm{number}",
            "attention.o_proj": "attn.proj",
            "attention.{part}": "attn.{part}",
            "mlp.gate_proj": "mlp.fc1_g",
            "mlp.up_proj": "mlp.fc1_x" if gated else "mlp.fc1",
            "mlp.down_proj": "mlp.fc2",
        },
    }
    for start, parts in names.items():
        block = f"{start}.{{block}}."
        rules.append(Rule(block + "layer_scale{number}.lambda1", "blocks.{block}.ls{number}.gamma"))
        rules += [
            Rule(f"{block}{n}.{{entry}}", f"blocks.{{block}}.{part}.{{entry}}") for n, part in parts.items()
        ]
    return tuple(rules)


TRANSFORMERS_RULES = {gated: _transformers_rules(gated=gated) for gated in (False, True)}
"""By whether the MLPs of DINOv3 are gated."""


def _head_rules(theirs: str, ours: str) -> list[Rule]:
    return [
        Rule(f"classifier{theirs}.weight", f"heads.{ours}.classifier.weight"),
        Rule(f"bottleneck{theirs}.{{entry}}", f"heads.{ours}.neck.{{entry}}"),
    ]


def _demo_rules() -> tuple[Rule, ...]:
    """DeMo's published checkpoints, and the first SDTPS prototype's, which extends them."""
    # The backbone.
    rules = [
        rule._replace(theirs=f"BACKBONE.base.{rule.theirs}", ours=f"backbone.vit.{rule.ours}")
        for rule in CLIP_RULES
    ]
    rules.append(Rule("BACKBONE.cv_embed", "backbone.camera_embed"))
    # PIFE, SDTPS and one head per modality.
    for index, modality in enumerate(Modality):
        name = DEMO_MODALITIES[modality]
        rules += [
            Rule(f"{name}_reduce.{{layer}}.{{entry}}", f"pife.reduce.{modality.key}.{{layer}}.{{entry}}"),
            Rule(
                f"sdtps.{name}_sparse.score_predictor.{{layer}}.{{entry}}",
                f"branches.sdtps.select.selectors.{index}.score_predictor.{{layer}}.{{entry}}",
            ),
            Rule(f"sdtps.{name}_aggr.scale", f"branches.sdtps.select.aggregators.{index}.scale"),
            Rule(
                f"sdtps.{name}_aggr.weight.{{layer}}.{{entry}}",
                f"branches.sdtps.select.aggregators.{index}.weight.{{layer}}.{{entry}}",
            ),
            *_head_rules(f"_{modality.letter}", f"ori_{modality.key}"),
        ]
    # HDM, ATMoE and the other heads.
    for subset in SUBSETS:
        theirs, ours = f"generalFusion.{subset}", f"branches.moe.hdm.attentions.{subset}"
        rules += [
            Rule(f"{theirs}_token", f"{ours}.query"),
            Rule(f"{theirs}.in_proj_{{entry}}", f"{ours}.in_proj.{{entry}}"),
            Rule(f"{theirs}.out_proj.{{entry}}", f"{ours}.out_proj.{{entry}}"),
        ]
    gate = "generalFusion.moe.gating_network.gate"
    rules += [
        Rule(
            "generalFusion.moe.experts.{head}.expertHead.{feature}.mlp.{layer}.{entry}",
            "branches.moe.atmoe.experts.head{head}_feature{feature}.{layer}.{entry}",
        ),
        Rule(f"{gate}.linear_re.{{layer}}.{{entry}}", "branches.moe.atmoe.summary.{layer}.{entry}"),
        Rule(f"{gate}.q_.weight", "branches.moe.atmoe.to_query.weight"),
        Rule(f"{gate}.k_.weight", "branches.moe.atmoe.to_key.weight"),
        *_head_rules("", "ori"),
        *_head_rules("_moe", "moe"),
        *_head_rules("_sdtps", "sdtps"),
    ]
    return tuple(rules)


def _signal_rules() -> tuple[Rule, ...]:
    """Signal's published checkpoints."""
    theirs, ours = "clip_vision_encoder", "backbone"
    rules = [
        rule._replace(theirs=f"{theirs}.base.{rule.theirs}", ours=f"{ours}.vit.{rule.ours}")
        for rule in CLIP_RULES
    ]
    rules.append(Rule(f"{theirs}.cv_embed", f"{ours}.camera_embed"))
    # Selection and interaction.
    theirs, ours = "SIM.modal_interactive", "branches.signal.interact"
    rules += [
        Rule("SIM.token_selection.W_q.{entry}", "branches.signal.select.to_query.{entry}"),
        Rule("SIM.token_selection.W_k.{entry}", "branches.signal.select.to_key.{entry}"),
        Rule(f"{theirs}.cross_attn.{{path}}", f"{ours}.attention.{{path}}"),
        Rule(f"{theirs}.ffn.{{layer}}.{{entry}}", f"{ours}.mlp.{{layer}}.{{entry}}"),
        Rule(f"{theirs}.norm1.{{entry}}", f"{ours}.norm1.{{entry}}"),
        Rule(f"{theirs}.norm2.{{entry}}", f"{ours}.norm2.{{entry}}"),
    ]
    # The alignment losses, and the heads.
    rules.append(Rule("AlignM.contra_temp", "branches.signal.gam.temperature"))
    for modality in Modality:
        theirs, ours = f"AlignM.DAS_{modality.letter}", f"branches.signal.lam.samplers.{modality.key}"
        rules += [
            Rule(f"{theirs}.proj_q.{{entry}}", f"{ours}.query.{{entry}}"),
            Rule(f"{theirs}.conv_offset.{{layer}}.{{entry}}", f"{ours}.offset.{{layer}}.{{entry}}"),
            *_head_rules(f"_{modality.letter}", f"ori_{modality.key}"),
        ]
    return (*rules, *_head_rules("", "ori"), *_head_rules("_var", "signal"))


SIGNAL_RULES = _signal_rules()


def _editor_rules(*, al: bool) -> tuple[Rule, ...]:
    """EDITOR's published checkpoints; with AL they hold the head of single modalities too, but unused."""
    hma, ours = "FUSE_block", "branches.editor"
    trunk = ("cls_token", "pos_embed", "patch_embed.{path}", "blocks.{path}", "norm.{entry}")
    rules = [Rule(f"BACKBONE.base.{name}", f"backbone.vit.{name}") for name in trunk]
    rules.append(Rule("BACKBONE.base.sie_embed", "backbone.camera_embed"))
    # The blocks of HMA: by modality, then the joint one, whose parts have names of their own.
    parts = {
        m: (f"norm{m.value[0]}", f"attn{m.value[0]}", f"norm{m.value[0]}_", f"mlp{m.value[0]}")
        for m in Modality
    }
    blocks = {f"own.{m.key}": parts[m] for m in Modality} | {"joint": ("norm1", "attn1", "norm2", "mlp")}
    for block, (norm1, attention, norm2, mlp) in blocks.items():
        owners = {"qkv": attention, "proj": attention, "fc1": mlp, "fc2": mlp}
        rules += [
            Rule(f"{hma}.{norm1}.{{entry}}", f"{ours}.{block}.norm1.{{entry}}"),
            Rule(f"{hma}.{norm2}.{{entry}}", f"{ours}.{block}.norm2.{{entry}}"),
            *(Rule(f"{hma}.{part}.{n}.weight", f"{ours}.{block}.{n}.weight") for n, part in owners.items()),
        ]
    rules.append(Rule(f"{hma}.out_norm.{{entry}}", f"{ours}.norm.{{entry}}"))
    # Pooling, centres, heads.
    for modality, name in DEMO_MODALITIES.items():
        rules += [
            Rule(f"{name.upper()}_REDUCE.{{entry}}", f"{ours}.reduce.{modality.key}.{{entry}}"),
            Rule(f"{hma}.memory_cls.{name.upper()}_centers", f"{ours}.{modality.key}_centers"),
        ]
    heads = {"FUSE": "editor", **({"AL": "editor_class"} if al else {"BACKBONE": "editor_modality"})}
    for name, head in heads.items():
        rules += [
            Rule(f"{name}_HEAD.weight", f"heads.{head}.classifier.weight"),
            Rule(f"{name}_BN.{{entry}}", f"heads.{head}.neck.{{entry}}"),
        ]
    return tuple(rules)


EDITOR_RULES = {al: _editor_rules(al=al) for al in (False, True)}
"""By whether the file was trained with AL."""

UNUSED = {
    "SIM.token_selection.W_v.": "Signal's own code never uses it",
    "FREQ_INDEX.": "Haar filters, which are constant",
    "BACKBONE.base.fc.": "EDITOR's own code never uses this ImageNet classifier",
    "BACKBONE_HEAD.": "EDITOR's own code does not use it with AL 1",
    "BACKBONE_BN.": "EDITOR's own code does not use it with AL 1",
}
"""Beginnings of names elsewhere that have no name here, each with the reason why nothing is lost."""


def why_unused(name: str) -> str:
    """Why an entry without a name here can be left out; empty if it cannot."""
    return next((reason for start, reason in UNUSED.items() if name.startswith(start)), "")


VERSION_1 = {
    "sdtps.": "branches.sdtps.select.",
    "hdm.": "branches.moe.hdm.",
    "atmoe.": "branches.moe.atmoe.",
}
"""Beginnings of our own names before there were branches -> now."""


def with_current_names(state: Any) -> Any:
    """The entries of a model of ours, which may be one of version 1, under the names of today.

    Anything but a state dict is returned unchanged; the checks of checkpoints refuse it.
    """
    if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
        return state

    for old, new in VERSION_1.items():
        state = {re.sub(f"^{re.escape(old)}", new, name): tensor for name, tensor in state.items()}
    return state


DEMO_CLIP_RULES = _demo_rules()
DEMO_VIT_RULES = (
    Rule("BACKBONE.base.sie_embed", "backbone.camera_embed"),
    Rule("BACKBONE.base.{path}", "backbone.vit.{path}"),
    *(rule for rule in DEMO_CLIP_RULES if not rule.theirs.startswith("BACKBONE.")),
)


def _compile(template: str) -> re.Pattern[str]:
    escaped = re.escape(template).replace(r"\{", "{").replace(r"\}", "}")
    pattern = escaped.replace("{path}", "(?P<path>.+)")
    return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^.]+)", pattern))


def rename(
    state: dict[str, Tensor], rules: Iterable[Rule], *, to_ours: bool = True
) -> tuple[dict[str, Tensor], list[str]]:
    """Translate the entries of a checkpoint by the first rule that fits each, to our names or from them.

    Returns:
        The translated entries, and the names that no rule fits.
    """
    compiled = [(_compile(rule.theirs if to_ours else rule.ours), rule) for rule in rules]
    renamed: dict[str, Tensor] = {}
    unknown = []
    for name, tensor in state.items():
        for pattern, rule in compiled:
            if match := pattern.fullmatch(name):
                target = (rule.ours if to_ours else rule.theirs).format(**match.groupdict())
                renamed[target] = (rule.to_ours if to_ours else rule.to_theirs)(tensor)
                break
        else:
            unknown.append(name)
    return renamed, unknown
