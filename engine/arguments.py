"""The command lines of the entry points. Nothing slow is imported here: --help is answered at once."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

DEMO_CONFIG = Path(__file__).parent.parent / "configs" / "Synthetic" / "DeMo_SDTPS.yml"


def answer_early(arguments: Callable[[Sequence[str] | None], argparse.Namespace]) -> argparse.Namespace:
    """For the first lines of a command: answer --help, mistakes and Ctrl-C before the slow imports."""
    # A command that was started to ignore Ctrl-C, in the background of a script, still does.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end_interrupted)
    return arguments(None)


def restore_interrupt() -> None:
    """Once everything is imported, Ctrl-C raises KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _end_interrupted:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end_interrupted(_: int, __: FrameType | None) -> None:
    # An exception would be raised in the middle of an import, where others may catch it.
    os.write(2, b"interrupted\n")
    os._exit(130)


def add_config_arguments(
    parser: argparse.ArgumentParser,
    default: str,
    base: str = "the defaults",
    example: str = "MODEL.DEVICE cpu",
) -> None:
    """--config_file, whose help names its `default` and its `base`, and the overrides."""
    parser.add_argument(
        "--config_file",
        metavar="FILE",
        type=_file_name,
        help=f"YAML with the settings that differ from {base} (without it: {default})",
    )
    parser.add_argument(
        "overrides",
        metavar="KEY VALUE",
        nargs="*",
        help=f"override the configuration, such as {example}; docs/configuration.md lists all keys",
    )


def output_path(text: str) -> Path:
    """The name of a file or folder to write; an empty one, as from a variable that is not set, is refused."""
    if not text:
        raise argparse.ArgumentTypeError("the name is empty")
    return Path(text)


def _file_name(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("the name is empty; name a YAML file, or leave the option out")
    return text


def add_weight_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the commands that load weights."""
    parser.add_argument(
        "--allow_partial", action="store_true", help="load the weights that fit even if others are missing"
    )


def train_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line of train_net.py; `resume` is None, or a path, empty for last.pth of the run folder."""
    parser = argparse.ArgumentParser(description="Train multi-modal person re-identification.")
    demo = "the demo, configs/Synthetic/DeMo_SDTPS.yml, replacing an earlier demo"
    add_config_arguments(parser, demo, example="SOLVER.MAX_EPOCHS 20")
    add_weight_arguments(parser)
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier run in OUTPUT_DIR")
    parser.add_argument(
        "--resume",
        metavar="CHECKPOINT",
        nargs="?",
        const="",
        help="continue the run in OUTPUT_DIR, or from CHECKPOINT of another run",
    )
    parser.add_argument(
        "--force", action="store_true", help="resume even with settings or images that alter the result"
    )
    args = parser.parse_intermixed_args(_separate_resume(sys.argv[1:] if argv is None else argv))
    args.overwrite |= args.config_file is None and args.resume is None and not args.overrides  # the demo
    args.config_file = DEMO_CONFIG if args.config_file is None else args.config_file
    return args


def _separate_resume(argv: Sequence[str]) -> list[str]:
    """Keep argparse from taking a key for the checkpoint, as in `--resume KEY VALUE`."""
    words = list(argv)
    for index, word in enumerate(words[:-1]):
        if word == "--resume" and re.fullmatch(r"[A-Z_]+(\.[A-Z_0-9]+)?", words[index + 1]):
            words[index] = "--resume="
    return words


def evaluation_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line of test_net.py."""
    parser = argparse.ArgumentParser(description="Evaluate multi-modal person re-identification.")
    add_config_arguments(parser, "the configuration in the checkpoint", base="the checkpoint")
    add_weight_arguments(parser)
    parser.add_argument(
        "--missing",
        choices=("all",),
        help="evaluate complete triples and every missing-modality condition in one pass",
    )
    parser.add_argument(
        "--any_to_any",
        action="store_true",
        help="also search each combination of modalities in each other one, as a matrix",
    )
    parser.add_argument(
        "--shared_space",
        action="store_true",
        help="with --any_to_any, compare in a space that all modalities share, fitted to the training split",
    )
    for option, metavar, what in (
        ("--save_features", "FILE", "the features of the test images as .npz"),
        ("--metrics", "FILE", "the numbers as JSON, also by identity and pair of cameras"),
        ("--report", "DIR", "a folder that shows results, ranked lists and selected patches in a browser"),
    ):
        parser.add_argument(option, metavar=metavar, type=output_path, help=f"write {what}")
    args = parser.parse_intermixed_args(argv)
    if args.shared_space and not args.any_to_any:
        parser.error("--shared_space is for the matrix of --any_to_any; add it")
    return args
