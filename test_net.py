"""Evaluate a trained model: `python test_net.py --config_file F TEST.WEIGHT runs/…/best.pth`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from config import ConfigError, load_config, warn_about_unused
from datasets.build import build_data
from engine.arguments import test_arguments
from engine.build import make_device, missing_modalities
from engine.checkpoint import save_arrays, save_json
from engine.distributed import World
from engine.evaluate import evaluate, result_table
from engine.setup import describe_software, run_command, seed_everything, setup_log
from evaluation.build import make_evaluator
from modeling.flops import measure_cost
from modeling.make_model import make_model
from modeling.weights import load_model

logger = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> None:
    """Read the configuration and the weights, evaluate, and report the result and the cost."""
    args = test_arguments(argv)
    cfg = load_config(args.config_file, args.settings)
    if not cfg.TEST.WEIGHT:
        raise ConfigError(
            "TEST.WEIGHT is empty; name the checkpoint to evaluate, TEST.WEIGHT runs/…/best.pth"
        )
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
        evaluator = make_evaluator(cfg, data.query_rows, data.gallery_rows, data.protocol)
        missing = missing_modalities(cfg)
        if missing:
            logger.info("missing in this evaluation: %s", ", ".join(modality.value for modality in missing))
        score = partial(evaluate, loader=data.test_loader, evaluator=evaluator, device=device)
        result = score(model, missing=missing, world=world)
    if not world.is_main:
        return
    cost = measure_cost(model)
    logger.info("result of %s\n%s", cfg.TEST.WEIGHT, result_table(result))
    logger.info("cost\n%s", cost.table())
    if args.save_features is not None:
        save_arrays(args.save_features, evaluator.arrays())
        logger.info("wrote the features of %d test triples to %s", result.num_samples, args.save_features)
    if args.metrics is not None:
        save_json(args.metrics, {"result": result.as_dict(), "cost": cost.as_dict()})


if __name__ == "__main__":
    run_command(main)
