"""Evaluate a trained model: `python test_net.py --config_file F TEST.WEIGHT runs/…/best.pth`."""

from engine.arguments import answer_early, test_arguments

if __name__ == "__main__":
    answer_early(test_arguments)  # --help, mistakes and Ctrl-C, before the slow imports

import logging
from collections.abc import Sequence

from config import ConfigError, load_config, warn_about_unused
from datasets.build import build_data
from engine.build import make_device, missing_settings
from engine.command import run_command
from engine.distributed import World
from engine.evaluate import evaluate_settings
from engine.files import save_arrays
from engine.results import log_results, read_history, save_results
from engine.runtime import describe_software, git_commit, seed_everything, setup_log
from evaluation.build import make_evaluator
from modeling.flops import measure_cost
from modeling.make_model import make_model
from modeling.weights import load_model
from reporting.build import make_report_writer

logger = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> None:
    """Read the configuration and the weights, evaluate, and report the result and the cost."""
    args = test_arguments(argv)
    cfg = load_config(args.config_file, args.settings)
    if not cfg.TEST.WEIGHT:
        raise ConfigError(
            "TEST.WEIGHT is empty; name the checkpoint to evaluate, TEST.WEIGHT runs/…/best.pth"
        )
    settings = missing_settings(cfg, args.missing)
    setup_log()
    warn_about_unused(cfg)
    world = World.from_environment()
    device = make_device(cfg, world)
    logger.info("%s, device %s", describe_software(), device)
    seed_everything(cfg.SOLVER.SEED)
    with world.joined(device):
        with world.main_first():
            data = build_data(cfg, rank=world.rank, num_processes=world.size)
        model = make_model(cfg, data.num_classes, data.num_cameras, data.num_views)
        load_model(model, cfg.TEST.WEIGHT, allow_partial=args.allow_partial)
        model.to(device)
        evaluators = {setting: make_evaluator(cfg, data.test) for setting in settings}
        report = None
        if args.report is not None:
            report = make_report_writer(cfg, args.report, data, git_commit(), world.size)
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
