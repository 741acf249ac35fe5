"""The command lines of the tools. Nothing slow is imported here: --help is answered at once."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from engine.arguments import add_config_arguments, add_weight_arguments, output_path

FIGURE_KINDS = ("ranks", "selection", "attention")
FORMATS = ("demo", "ours", "safetensors", "trunk")
SHARD_FORMATS = ("npz", "parquet")
SPLITS = ("validation", "test")


def check_dataset_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line of tools.check_dataset."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.check_dataset",
        description="Open every image of a data set and list what is wrong.",
    )
    add_config_arguments(parser, default="the defaults alone", example="DATASETS.ROOT_DIR /data")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="threads that decode images")
    parser.add_argument("--json", type=output_path, metavar="FILE", help="also write what is found here")
    return parser.parse_intermixed_args(argv)


def describe_images_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line of tools.describe_images."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.describe_images",
        description="Print brightness, contrast, saturation, sharpness and power spectrum of data sets.",
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


def search_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line of tools.search."""
    gallery_help = "a file for FAISS, NAME.db for Milvus Lite, or http://HOST:19530 for Milvus"
    parser = argparse.ArgumentParser(
        prog="python -m tools.search", description="Find people in a gallery of descriptors."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="{build,query}")
    build = commands.add_parser("build", help="make a gallery from what tools.embed has written")
    build.add_argument("embeddings", type=Path, metavar="EMBEDDINGS", help="folder of tools.embed")
    build.add_argument("gallery", metavar="GALLERY", help=gallery_help)
    build.add_argument(
        "--recall", type=float, default=0.99, help="that an index of a large gallery has to reach (0.99)"
    )
    query = commands.add_parser(
        "query",
        help="list the entries that are most like a triple of images",
        usage="%(prog)s GALLERY --weights FILE [--rgb IMAGE] [--ni IMAGE] [--ti IMAGE] [options] [KEY VALUE]",
        epilog="KEY VALUE overrides the configuration in the checkpoint, as for tools.embed.",
    )
    query.add_argument("gallery", metavar="GALLERY", help=gallery_help)
    query.add_argument("--weights", required=True, metavar="FILE", help="the checkpoint that embedded it")
    query.add_argument("--pattern", type=int, default=3, help="its return pattern: 1, 2 or 3 (3)")
    query.add_argument("--pca", type=Path, metavar="FILE", help="its pca.npz, if tools.embed had --dim")
    for modality in ("rgb", "ni", "ti"):
        query.add_argument(f"--{modality}", type=Path, metavar="IMAGE", help="leave out what you lack")
    query.add_argument("-k", type=int, default=10, help="entries to list (10)")
    query.add_argument(
        "--camera", type=int, nargs="+", metavar="C", help="list entries of these cameras only"
    )
    query.add_argument("--without", type=int, nargs="+", metavar="C", help="list none of these cameras")
    query.add_argument("--config_file", metavar="FILE", help="YAML, for a checkpoint without a configuration")
    # What no argument takes are overrides: a parser with commands cannot mix options and positional words.
    args, rest = parser.parse_known_args(argv)
    args.overrides = rest
    unknown = [word for word in rest if word.startswith("--") or args.command != "query"]
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    return args


def _modalities(text: str) -> list[str]:
    names, known = text.upper().split("+"), ("RGB", "NI", "TI")
    if not set(names) <= set(known):
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(known)}, or several joined by +")
    return names


def embed_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line of tools.embed."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.embed",
        description="Write the descriptors of your own images. The same command continues where it stopped; "
        "torchrun shares the work between processes.",
    )
    parser.add_argument(
        "source", type=Path, metavar="FOLDER|LIST.csv",
        help="a folder with RGB/, NI/, TI/ (files matched by name), or a CSV: rgb,ni,ti[,id,camera,split]",
    )  # fmt: skip
    parser.add_argument("output", type=output_path, metavar="OUT", help="folder to write")
    parser.add_argument("--weights", required=True, metavar="FILE", help="the checkpoint")
    parser.add_argument("--pattern", type=int, default=3, help="return pattern: 1, 2 or 3 (3)")
    parser.add_argument(
        "--modalities", type=_modalities, metavar="RGB+TI",
        help="embed these images alone, for queries that have no others (all)",
    )  # fmt: skip
    parser.add_argument(
        "--dim", type=int, metavar="N",
        help="shorten descriptors to N numbers by a PCA, kept in OUT/pca.npz; without --pca it is "
        "learned on the training split of the checkpoint's data set",
    )  # fmt: skip
    parser.add_argument(
        "--whiten", type=float, default=0.0, metavar="P",
        help="divide by the standard deviations to the power of P; 1 whitens fully (0)",
    )  # fmt: skip
    parser.add_argument("--pca", type=Path, metavar="FILE", help="use the pca.npz of an earlier OUT")
    parser.add_argument(
        "--fit_on", type=Path, metavar="DIR", help="learn the PCA on an earlier OUT of whole descriptors"
    )
    parser.add_argument("--format", choices=SHARD_FORMATS, default="npz", help="of the shards (npz)")
    parser.add_argument("--shard_size", type=int, default=4096, metavar="N", help="triples in a shard (4096)")
    parser.add_argument("--batch_size", type=int, default=32, metavar="N", help="triples at once (32)")
    add_config_arguments(parser, "the configuration in the checkpoint", base="the checkpoint")
    return parser.parse_intermixed_args(argv)


def calibrate_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line of tools.calibrate."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.calibrate",
        description="Find the distance below which two triples show the same person, on held-out identities.",
    )
    parser.add_argument("weights", metavar="WEIGHTS", help="the checkpoint")
    parser.add_argument("output", type=output_path, metavar="OUT.json", help="file to write")
    parser.add_argument(
        "--fmr", type=float, default=1e-3, metavar="RATE",
        help="false-match rate: share of the pairs of different people that may match (1e-3)",
    )  # fmt: skip
    parser.add_argument(
        "--split", choices=SPLITS, default="validation",
        help="where to measure: identities that DATASETS.VAL_IDS held out (validation), or the test split",
    )  # fmt: skip
    parser.add_argument("--pattern", type=int, default=3, help="return pattern: 1, 2 or 3 (3)")
    parser.add_argument("--pca", type=Path, metavar="FILE", help="pca.npz of tools.embed --dim")
    parser.add_argument("--figure", action="store_true", help="also draw the curve, as OUT.pdf and OUT.png")
    parser.add_argument("--batch_size", type=int, default=32, metavar="N", help="triples at once (32)")
    add_config_arguments(parser, "the configuration in the checkpoint", base="the checkpoint")
    return parser.parse_intermixed_args(argv)
