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
    parser = argparse.ArgumentParser(
        prog="python -m tools.check_dataset",
        description="Open every image of a data set and list what is wrong.",
    )
    add_config_arguments(parser, default="the defaults alone")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="threads that decode images")
    parser.add_argument("--json", type=output_path, metavar="FILE", help="also write what is found here")
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
    parser = argparse.ArgumentParser(
        prog="python -m tools.convert", description="Translate a checkpoint between DeMo's names and ours."
    )
    parser.add_argument("input", type=Path, help="checkpoint to read; the format is told by its content")
    parser.add_argument("output", type=output_path, help="file to write; it must not exist")
    parser.add_argument("--to", required=True, choices=FORMATS, help="what to write")
    return parser.parse_args(argv)


def export_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line of tools.export."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.export",
        description="Export a trained model as ONNX, for torch.export, or as a folder for a model hub.",
    )
    parser.add_argument("weights", metavar="WEIGHTS", help="checkpoint, or a folder that this command wrote")
    parser.add_argument(
        "output",
        metavar="OUT",
        type=output_path,
        help="OUT.onnx; OUT.pt2 for torch.export.load; or a folder: weights, configuration, model card",
    )
    parser.add_argument(
        "--pattern", type=int, help="return pattern of a file: 1 original, 2 fused, 3 both (the model's last)"
    )
    parser.add_argument(
        "--int8", action="store_true", help="also write OUT.int8.onnx, quantised, and report what changes"
    )
    add_config_arguments(parser, "the configuration in the checkpoint", base="the checkpoint")
    add_weight_arguments(parser)
    return parser.parse_intermixed_args(argv)


def figures_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line of tools.figures; `kind` and `queries` may hold overrides that follow them."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.figures", description="Draw ranked lists, selection maps and attention maps."
    )
    add_config_arguments(parser, "the configuration in the checkpoint", base="the checkpoint")
    add_weight_arguments(parser)
    parser.add_argument("--weights", metavar="FILE", help="the checkpoint, in place of TEST.WEIGHT")
    parser.add_argument(
        "--output", type=output_path, metavar="DIR", default=Path("figures"), help="(figures)"
    )
    kinds = f"some of {', '.join(FIGURE_KINDS)} (all that the model has)"
    parser.add_argument("--kind", nargs="+", metavar="KIND", help=kinds)
    queries = "file names, or rows of the test triples, from 0"
    parser.add_argument("--queries", nargs="+", metavar="QUERY", help=queries)
    parser.add_argument("--count", type=int, default=4, help="number of queries, evenly spread (4)")
    parser.add_argument("--hardest", action="store_true", help="the queries with the lowest AP instead")
    parser.add_argument("--top", type=int, default=10, help="gallery triples in a ranked list (10)")
    parser.add_argument("--pattern", type=int, help="return pattern of the ranked lists (the model's last)")
    parser.add_argument("--width", type=float, default=7.0, help="of the figures, in inches (7)")
    return parser.parse_intermixed_args(argv)
