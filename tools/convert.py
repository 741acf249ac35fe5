"""Translate a checkpoint: `python -m tools.convert IN OUT --to demo|ours|safetensors|trunk`.

IN may be a whole model of ours, of DeMo, of the first SDTPS, of EDITOR or of Signal. `demo` writes a plain
state dict that DeMo's code loads, `ours` a checkpoint of this project, `safetensors` our names in that
format, `trunk` the same of the backbone alone, to start other models from (MODEL.PRETRAIN_PATH_T).
"""

from __future__ import annotations

from engine.arguments import answer_early
from tools.arguments import convert_arguments

if __name__ == "__main__":
    answer_early(convert_arguments)  # --help, mistakes and Ctrl-C, before the slow imports

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save as safetensors_bytes
from torch import Tensor

from engine.checkpoint import save_checkpoint
from engine.command import run_command
from engine.files import check_destination, save_bytes, write_atomically
from engine.runtime import setup_log
from modeling.checkpoint_file import WeightsError
from modeling.checkpoint_names import why_unused
from modeling.weights import (
    TUNING,
    WHOLE_MODELS,
    read_any,
    shorten,
    to_demo_names,
    to_our_names,
    trunk_entries,
)
from trained import load_trained
from weight_file import TRUNK_FILE

logger = logging.getLogger(__name__)

State = dict[str, Tensor]


def write_demo(state: State, path: Path) -> None:
    """A plain state dict under DeMo's names."""
    renamed, unknown = to_demo_names(state)
    if unknown:
        raise WeightsError(f"DeMo has no place for {len(unknown)} entries: {shorten(unknown)}")
    write_atomically(path, lambda file: torch.save(renamed, file))


def write_safetensors(state: State, path: Path) -> None:
    """Our names in the safetensors format."""
    content = safetensors_bytes({name: tensor.contiguous() for name, tensor in state.items()})
    save_bytes(path, content)


WRITERS: dict[str, Callable[[State, Path], None]] = {
    "demo": write_demo,
    "ours": lambda state, path: save_checkpoint(path, model=state),  # without optimiser and configuration
    "safetensors": write_safetensors,
    "trunk": lambda state, path: write_safetensors(trunk_entries(state), path),
}


def main(argv: Sequence[str] | None = None) -> None:
    """Read, translate, write."""
    args = convert_arguments(argv)
    setup_log()
    check_destination(args.output)
    origin, state, content = read_any(args.input)
    if origin not in WHOLE_MODELS:
        raise WeightsError(f"{args.input} holds a backbone, not a whole model; there is nothing to translate")
    state, unknown = to_our_names(state)
    for name in [name for name in unknown if why_unused(name)]:
        logger.info("left out: %s (%s)", name, why_unused(name))
        unknown.remove(name)
    if unknown:
        raise WeightsError(f"{len(unknown)} entries of {args.input} have no name here: {shorten(unknown)}")
    # A checkpoint that holds only what was tuned gets its trunk from its file.
    if isinstance(content, Mapping) and TRUNK_FILE in content:
        state = load_trained(args.input).model.state_dict()
    if args.to == "trunk" and any(name.startswith(TUNING) for name in state):
        raise WeightsError(
            f"{args.input} has adapters or LoRA, for which a trunk file has no place, and its trunk has not "
            "changed; use `--to ours`"
        )
    WRITERS[args.to](state, args.output)
    logger.info("%s (%s) -> %s (%s), %d entries", args.input, origin, args.output, args.to, len(state))


if __name__ == "__main__":
    run_command(main)
