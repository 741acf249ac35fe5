"""The command lines of the tools. Nothing slow is imported here: --help is answered at once."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from engine.arguments import add_config_arguments, add_weight_arguments, output_path

FIGURE_KINDS = ("ranks", "selection", "attention")
FORMATS = ("demo", "ours", "safetensors")


def check_dataset_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line of tools.check_dataset."""
    parser = argparse.ArgumentParser(description="Open every image of a data set and list what is wrong.")
    add_config_arguments(parser, default="the defaults alone")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="threads that decode images")
    parser.add_argument(
        "--json", type=output_path, metavar="FILE", help="also write what is found to this file"
    )
    return parser.parse_intermixed_args(argv)


def describe_images_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line of tools.describe_images."""
    parser = argparse.ArgumentParser(
        description="Print brightness, contrast, saturation, sharpness and power spectrum of data sets."
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="of a data set")
    parser.add_argument(
        "--layout", default="RGBNT201", metavar="NAME", help="data set whose layout they have (RGBNT201)"
    )
    parser.add_argument(
        "--triples", type=int, default=400, metavar="N", help="read at most N, evenly spread (400; 0: all)"
    )
    parser.add_argument(
        "--sheet", type=output_path, metavar="FILE", help="also draw some test identities of the first folder"
    )
    return parser.parse_args(argv)


def convert_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line of tools.convert."""
    parser = argparse.ArgumentParser(description="Translate a checkpoint between DeMo's names and ours.")
    parser.add_argument("input", type=Path, help="checkpoint to read; the format is told by its content")
    parser.add_argument("output", type=output_path, help="file to write; it must not exist")
    parser.add_argument("--to", required=True, choices=FORMATS, help="what to write")
    return parser.parse_args(argv)


def figures_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line of tools.figures; `kind` and `queries` may hold settings that follow them."""
    parser = argparse.ArgumentParser(description="Draw ranked lists, selection maps and attention maps.")
    add_config_arguments(parser, "the configuration in the checkpoint", base="the checkpoint")
    add_weight_arguments(parser)
    parser.add_argument("--weights", metavar="FILE", help="the checkpoint, in place of TEST.WEIGHT")
    parser.add_argument(
        "--output",
        type=output_path,
        metavar="DIR",
        default=Path("figures"),
        help="folder to write into (figures)",
    )
    parser.add_argument(
        "--kind",
        nargs="+",
        metavar="KIND",
        help=f"some of {', '.join(FIGURE_KINDS)} (all that the model has)",
    )
    parser.add_argument(
        "--queries", nargs="+", metavar="QUERY", help="file names, or rows of the test triples, from 0"
    )
    parser.add_argument("--count", type=int, default=4, help="number of queries, evenly spread (4)")
    parser.add_argument("--hardest", action="store_true", help="the queries with the lowest AP instead")
    parser.add_argument("--top", type=int, default=10, help="gallery triples in a ranked list (10)")
    parser.add_argument("--pattern", type=int, help="return pattern of the ranked lists (the model's last)")
    parser.add_argument("--width", type=float, default=7.0, help="of the figures, in inches (7)")
    return parser.parse_intermixed_args(argv)


def slim_sweep_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line of tools.slim_sweep."""
    parser = argparse.ArgumentParser(description="Score slimmed models at several layers and keep ratios.")
    add_config_arguments(parser, "the configuration in the checkpoints", base="the checkpoints")
    parser.add_argument(
        "--weights", nargs="+", required=True, help="checkpoints, for example of several seeds"
    )
    parser.add_argument("--layers", nargs="+", default=["[3,6,9]"], help="lists such as [3,6,9] [6]")
    parser.add_argument("--keep", nargs="+", type=float, default=[0.5, 0.7, 0.9], help="keep ratios")
    parser.add_argument(
        "--output", type=output_path, default=Path("slimming"), help="OUTPUT.png and OUTPUT.json"
    )
    return parser.parse_intermixed_args(argv)


def soak_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line of tools.soak."""
    parser = argparse.ArgumentParser(
        description="Kill and resume training runs and reports; see that nothing is lost."
    )
    parser.add_argument("--kills", type=int, default=20, help="how often to kill (20)")
    parser.add_argument("--epochs", type=int, default=12, help="length of the runs (12)")
    parser.add_argument("--seed", type=int, default=0, help="decides the moments")
    return parser.parse_args(argv)


def study_gap_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line of tools.study_gap."""
    parser = argparse.ArgumentParser(
        description="Compare the difference between two variants in one study with that in another."
    )
    parser.add_argument(
        "studies", nargs=2, type=Path, metavar="STUDY", help="two folders of tools.ablate, on other data"
    )
    parser.add_argument(
        "--variants", nargs=2, required=True, metavar="NAME", help="two variants that both studies have"
    )
    parser.add_argument("--pattern", type=int, choices=(1, 2, 3), default=2, help="the return pattern (2)")
    parser.add_argument("--output", type=output_path, metavar="FILE.png", help="also draw the differences")
    return parser.parse_args(argv)


def study_missing_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line of tools.study_missing."""
    return _study_arguments("Evaluate the runs of a study without some modalities.", argv)


def study_shift_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line of tools.study_shift."""
    return _study_arguments("Shift the test images of the runs of a study; do the kept patches follow?", argv)


def _study_arguments(description: str, argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("study", type=Path, help="the folder of a study of tools.ablate")
    parser.add_argument("--variants", nargs="+", metavar="NAME", help="some of its variants (all)")
    return parser.parse_args(argv)
