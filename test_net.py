"""Evaluate a trained model: `python test_net.py TEST.WEIGHT runs/…/best.pth [KEY VALUE …]`."""

from engine.arguments import answer_early, evaluation_arguments

if __name__ == "__main__":  # --help, mistakes and Ctrl-C are answered before the slow imports
    early = answer_early(evaluation_arguments)
    from config.early import refuse_early

    refuse_early(early, whole=False)

import logging
from collections.abc import Sequence
from pathlib import Path

from config import warn_about_unused
from datasets.build import build_test_data, build_training_triples
from engine.build import make_device
from engine.command import run_command
from engine.distributed import World
from engine.files import save_arrays, save_json
from engine.final import read_history
from engine.run_folder import check_outputs
from engine.runtime import describe_software, git_commit, setup_log
from evaluation.any_to_any import score_any_to_any
from evaluation.build import find_conditions, make_evaluate
from evaluation.result import results_as_dict
from evaluation.shared_space import fit_shared_space
from evaluation.tables import any_to_any_table, results_text
from modeling.cost import describe_cost
from modeling.make_model import warn_random_start
from reporting.build import make_report_writer
from reporting.folder import ReportFolder
from trained import find_weights, load_trained

logger = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> None:
    """Read the checkpoint, evaluate its model, and report the result and the cost."""
    # What to evaluate, and where the results go.
    args = evaluation_arguments(argv)
    remedy = "TEST.WEIGHT is empty; name the checkpoint to evaluate, TEST.WEIGHT runs/…/best.pth"
    weights = find_weights(args.config_file, args.overrides, remedy)
    setup_log()
    world = World.from_environment()
    check_outputs((args.metrics, ".json"), (args.save_features, ".npz"))
    report_folder = None if args.report is None else ReportFolder(args.report, world.size)
    # The model.
    trained = load_trained(
        weights, args.overrides, config_file=args.config_file, allow_partial=args.allow_partial
    )
    cfg, model = trained.cfg, trained.model
    warn_about_unused(cfg)
    device = make_device(cfg, world)
    logger.info("%s, device %s", describe_software(), device)
    with world.joined(device):
        # The test split, and one pass over it.
        with world.main_first():
            share = {"rank": world.rank, "num_processes": world.size}
            data = build_test_data(cfg, trained.split, **share)
            training = build_training_triples(cfg, trained.split, **share) if args.shared_space else None
        conditions = find_conditions(cfg, data.test.modalities, args.missing, any_to_any=args.any_to_any)
        report = make_report_writer(cfg, report_folder, data, git_commit()) if report_folder else None
        evaluate = make_evaluate(cfg, data.test, device, world, conditions)
        results = evaluate(model.to(device), observe=report and report.observe)
        space = None
        if training is not None:
            logger.info("fitting a space that all modalities share to the training split")
            encoded = make_evaluate(cfg, training, device, world, ["complete"])(model)["complete"]
            space = fit_shared_space(encoded.samples)
    if not world.is_main:
        return
    # The results.
    logger.info(results_text(weights, trained.choice, results))
    matrix = score_any_to_any(results, space) if args.any_to_any else None
    if matrix is not None:
        logger.info(any_to_any_table(matrix))
    warn_random_start(cfg, trained.initial_weights)
    cost, text = describe_cost(model, data.test.modalities)
    logger.info("cost\n%s", text)
    if args.save_features is not None:
        save_arrays(args.save_features, results[conditions[0]].arrays())
        logger.info("wrote the features of the test triples to %s", args.save_features)
    if args.metrics is not None:
        more = {"cost": cost, "any_to_any": matrix and matrix.as_dict()}
        found = {name: part for name, part in more.items() if part is not None}
        save_json(args.metrics, {**results_as_dict(results), **found})
        logger.info("wrote the numbers to %s", args.metrics)
    if report is not None:
        history = {"choice": trained.choice, **read_history(Path(weights).parent)}
        page = report.finish(results, cost=cost, history=history, any_to_any=matrix)
        logger.info("report: open %s in a browser", page)


if __name__ == "__main__":
    run_command(main)
