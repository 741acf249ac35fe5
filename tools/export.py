"""Export a trained model: `python -m tools.export WEIGHTS OUT.onnx|OUT.pt2|FOLDER [KEY VALUE …]`.

The exported file is run beside the model and written only if their features agree. A folder holds
model.safetensors, config.yml and a model card; `Predictor.load` and TEST.WEIGHT take it.
"""

from __future__ import annotations

from engine.arguments import answer_early
from tools.arguments import export_arguments

if __name__ == "__main__":
    answer_early(export_arguments)  # --help, mistakes and Ctrl-C, before the slow imports

import argparse
import logging
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from datasets.build import EvaluationData, find_test_data, make_eval_transform
from engine.command import run_command
from engine.files import check_destination, save_bytes
from engine.runtime import git_commit, setup_log
from errors import UserError
from evaluation.build import make_evaluate
from inference.export import (
    BATCHES,
    TOLERANCE,
    ImagesToFeatures,
    Run,
    as_model,
    compare_features,
    open_onnx,
    open_pt2,
    quantise,
    random_inputs,
    to_onnx,
    to_pt2,
    verify,
)
from inference.model_folder import check_folder, write_model_folder
from reporting.extra import import_extra
from reporting.pictures import denormalise
from reporting.watch import read_triples, spread_evenly
from structures import RETURN_PATTERNS, ModalBatch, Modality, PerModality
from tools.figures import choose_pattern
from trained import Trained, load_trained, weight_file_of
from weight_file import hash_file

logger = logging.getLogger(__name__)

FORMATS: dict[str, tuple[Callable[[ImagesToFeatures, Mapping[str, Any]], bytes], Callable[[bytes], Run]]] = {
    ".onnx": (to_onnx, open_onnx),
    ".pt2": (to_pt2, open_pt2),
}
"""By the ending of a file, how it is made and how it is run."""


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; what contradicts itself or cannot be written is refused before anything runs."""
    args = export_arguments(argv)
    args.is_folder = args.output.is_dir() or not args.output.suffix
    if args.is_folder:
        if args.int8 or args.pattern is not None:
            raise UserError(
                f"--int8 and --pattern are for files, and {args.output} is a folder; leave them out"
            )
        check_folder(args.output)
        return args
    if args.output.suffix not in FORMATS:
        raise UserError(
            f"{args.output} ends in {args.output.suffix}; name OUT.onnx, OUT.pt2, or a folder without a dot"
        )
    if args.int8 and args.output.suffix != ".onnx":
        raise UserError(f"--int8 is for ONNX Runtime, and {args.output} is not an .onnx file")
    args.int8_output = args.output.with_suffix(".int8.onnx")
    for path in (args.output, *([args.int8_output] if args.int8 else [])):
        check_destination(path, replaces=path.suffix)
    if args.output.suffix == ".onnx":
        for package in ("onnx", "onnxscript", "onnxruntime"):
            import_extra(package, "export")
    return args


def make_graph(trained: Trained, wanted: int | None) -> ImagesToFeatures:
    """What is exported, with the wanted return pattern or the model's last."""
    model, transform = trained.model.eval(), make_eval_transform(trained.cfg)
    images = PerModality.build(lambda _: torch.zeros(1, 3, *transform.size))
    ids = torch.zeros(1, dtype=torch.long)
    with torch.no_grad():
        patterns = model(ModalBatch(images, ids, ids, ids)).patterns
    after_neck = trained.cfg.TEST.NECK_FEAT == "after"
    return ImagesToFeatures(model, transform, pattern=choose_pattern(wanted, patterns), after_neck=after_neck)


def describe(trained: Trained, graph: ImagesToFeatures, weights: str, digest: str) -> dict[str, Any]:
    """What a consumer has to know, and where the file comes from; for the metadata of the file."""
    try:
        project = version("demo-sdtps")
    except PackageNotFoundError:  # a checkout that pip does not know
        project = "unknown"
    return {
        "inputs": list(graph.input_names),
        "image_size": list(graph.size),  # height and width
        "modalities": [m.key for m in Modality],  # the order of `present`
        "normalisation": {
            "mean": graph.pixel_mean.flatten().tolist(),
            "std": graph.pixel_std.flatten().tolist(),
        },
        "normalisation_inside": True,
        "pattern": graph.pattern,
        "pattern_name": RETURN_PATTERNS[graph.pattern],
        "cameras": len(trained.split.cameras),
        "classes": trained.split.classes,
        "model": trained.cfg.MODEL.NAME,
        "data_set": trained.cfg.DATASETS.NAMES,
        "weights": Path(weights).name,
        "weights_sha256": digest,
        "choice": trained.choice,
        "version": project,
        "commit": git_commit(),
    }


def read_images(data: EvaluationData | None, graph: ImagesToFeatures) -> tuple[dict[str, np.ndarray], str]:
    """Images to run the file on, and what they are: of the test split, or noise where it is not there."""
    count = max(BATCHES)
    if data is None:
        return random_inputs(count, graph.size), f"{count} random triples"
    rows = spread_evenly(len(data.test.loader.dataset), count)  # type: ignore[arg-type]
    batch = read_triples(data.test.loader, [rows[index % len(rows)] for index in range(count)])
    mean, std = graph.pixel_mean.flatten().tolist(), graph.pixel_std.flatten().tolist()
    images = {m.key: denormalise(batch.images.of(m), mean, std).numpy() for m in Modality}
    return images, f"{len(rows)} test triples"


def score(trained: Trained, data: EvaluationData, graph: ImagesToFeatures, runs: Mapping[str, Run]) -> None:
    """Log the mAP of each way to run the model on the test split."""
    evaluate = make_evaluate(trained.cfg, data.test, torch.device("cpu"))
    for name, run in runs.items():
        (result,) = evaluate(as_model(run, graph)).values()
        logger.info("mAP %.2f, rank-1 %.2f: %s", 100 * result.main.mean_ap, 100 * result.main.rank(1), name)


def main(argv: Sequence[str] | None = None) -> None:
    """Read the checkpoint, export its model, and run the result before it is written."""
    args = parse_arguments(argv)
    setup_log()
    trained = load_trained(
        args.weights, args.overrides, config_file=args.config_file, allow_partial=args.allow_partial
    )
    weights = weight_file_of(args.weights)
    digest = hash_file(weights)
    # A folder.
    if args.is_folder:
        write_model_folder(args.output, trained, weights.parent, digest=digest)
        logger.info("wrote %s: %s", args.output, ", ".join(sorted(p.name for p in args.output.iterdir())))
        return
    # A file, which is run beside the model.
    graph = make_graph(trained, args.pattern)
    data = find_test_data(trained.cfg, trained.split)
    images, described = read_images(data, graph)
    logger.info("exporting return pattern %d (%s)", graph.pattern, RETURN_PATTERNS[graph.pattern])
    export, open_file = FORMATS[args.output.suffix]
    content = export(graph, describe(trained, graph, args.weights, digest))
    run = open_file(content)
    logger.info("running the file beside the model on %s", described)
    for case, difference in verify(run, graph, images).items():
        logger.info("largest difference %.1e (at most %.0e): %s", difference, TOLERANCE, case)
    save_bytes(args.output, content)
    logger.info("wrote %s, %.1f MB, inputs %s", args.output, len(content) / 1e6, ", ".join(graph.input_names))
    if not args.int8:
        return
    # The quantised file, and what it loses.
    small = quantise(content)
    run_small = open_onnx(small)
    largest, cosine = compare_features(run_small, graph, images)
    logger.info(
        "int8: largest difference of a feature %.1e, mean cosine with the model's %.5f", largest, cosine
    )
    save_bytes(args.int8_output, small)
    logger.info("wrote %s, %.1f MB", args.int8_output, len(small) / 1e6)
    if data is None:
        logger.warning(
            "mAP is not measured without the data set; set DATASETS.ROOT_DIR to the folder that holds it"
        )
        return
    score(
        trained,
        data,
        graph,
        {"torch, fp32": graph.run, "ONNX Runtime, fp32": run, "ONNX Runtime, int8": run_small},
    )


if __name__ == "__main__":
    run_command(main)
