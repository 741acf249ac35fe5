"""Evaluate a trained model: `python test_net.py TEST.WEIGHT runs/…/best.pth [KEY VALUE …]`."""

from engine.arguments import answer_early, test_arguments

if __name__ == "__main__":
    answer_early(test_arguments)  # --help, mistakes and Ctrl-C, before the slow imports

import logging
from collections.abc import Sequence

from config import warn_about_unused
from datasets.build import build_test_data
from engine.build import make_device, missing_settings
from engine.command import run_command
from engine.distributed import World
from engine.evaluate import evaluate_settings
from engine.files import save_arrays
from engine.results import log_results, read_history, save_results
from engine.run_folder import check_outputs
from engine.runtime import describe_software, git_commit, setup_log
from evaluation.build import make_evaluator
from modeling.cost import measure_cost
from reporting.build import make_report_writer
from reporting.folder import ReportFolder
from trained import find_weights, load_trained

logger = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> None:
    """Read the checkpoint, evaluate its model, and report the result and the cost."""
    args = test_arguments(argv)
    remedy = "TEST.WEIGHT is empty; name the checkpoint to evaluate, TEST.WEIGHT runs/…/best.pth"
    weights = find_weights(args.config_file, args.overrides, remedy)
    setup_log()
    world = World.from_environment()
    check_outputs((args.metrics, ".json"), (args.save_features, ".npz"))
    report_folder = None if args.report is None else ReportFolder(args.report, world.size)
    trained = load_trained(
        weights, args.overrides, config_file=args.config_file, allow_partial=args.allow_partial
    )
    cfg, model = trained.cfg, trained.model
    settings = missing_settings(cfg, args.missing)
    warn_about_unused(cfg)
    device = make_device(cfg, world)
    logger.info("%s, device %s", describe_software(), device)
    with world.joined(device):
        with world.main_first():
            data = build_test_data(cfg, trained.split, rank=world.rank, num_processes=world.size)
        model.to(device)
        evaluators = {setting: make_evaluator(cfg, data.test) for setting in settings}
        report = None
        if report_folder is not None:
            report = make_report_writer(cfg, report_folder, data, git_commit())
        results = evaluate_settings(
            model,
            loader=data.test.loader,
            evaluators=evaluators,
            device=device,
            world=world,
            observe=report.observe if report is not None else None,
        )
    if not world.is_main:
        return
    cost = measure_cost(model)
    log_results(cfg.TEST.WEIGHT, results, cost)
    main_evaluator = evaluators[settings[0]]
    if args.save_features is not None:
        save_arrays(args.save_features, main_evaluator.arrays())
        logger.info("wrote the features of the test triples to %s", args.save_features)
    if args.metrics is not None:
        save_results(args.metrics, results, main_evaluator.breakdown(), cost)
    if report is not None:
        history = read_history(cfg.TEST.WEIGHT)
        page = report.finish(evaluators, results, cost=cost.as_dict(), history=history)
        logger.info("report: open %s in a browser", page)


if __name__ == "__main__":
    run_command(main)
