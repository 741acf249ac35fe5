"""Train a model: `python train_net.py --config_file configs/RGBNT201/DeMo_SDTPS.yml KEY VALUE …`."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from config import load_config, save_config
from datasets.build import build_data
from engine.build import make_device, make_train_settings, missing_modalities
from engine.checkpoint import save_json
from engine.evaluate import evaluate, raw_pixels, result_table
from engine.setup import add_config_arguments, describe_software, run_command, seed_everything, start_run
from engine.train import Trainer
from evaluation.build import make_evaluator
from modeling.flops import measure_cost
from modeling.make_model import make_model
from modeling.weights import load_pretrained
from solver.build import make_criterion, make_optimizer, make_schedule

logger = logging.getLogger(__name__)

DEMO_CONFIG = Path(__file__).parent / "configs" / "Synthetic" / "DeMo_SDTPS.yml"


def main(argv: Sequence[str] | None = None) -> None:
    """Read the configuration, train, and report the result and the cost."""
    parser = argparse.ArgumentParser(description="Train multi-modal person re-identification.")
    add_config_arguments(
        parser, default="the demo, configs/Synthetic/DeMo_SDTPS.yml, replacing an earlier demo"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier run in OUTPUT_DIR")
    args = parser.parse_intermixed_args(argv)

    cfg = load_config(args.config_file or DEMO_CONFIG, args.settings)
    device = make_device(cfg)
    folder = start_run(Path(cfg.OUTPUT_DIR), overwrite=args.overwrite or args.config_file is None)
    save_config(cfg, folder / "config.yml")
    logger.info("run folder %s, %s, device %s", folder, describe_software(), device)
    seed_everything(cfg.SOLVER.SEED)

    data = build_data(cfg)
    model = make_model(cfg, data.num_classes, data.num_cameras, data.num_views)
    if cfg.MODEL.PRETRAIN_PATH_T:
        load_pretrained(model, cfg.MODEL.PRETRAIN_PATH_T, allow_partial=args.allow_partial)
    model.to(device)

    evaluator = make_evaluator(cfg, data.query_rows, data.gallery_rows, data.protocol)
    missing = missing_modalities(cfg)
    test = partial(evaluate, loader=data.test_loader, evaluator=evaluator, device=device, missing=missing)
    controls = {"untrained": test(model), "raw pixels": test(raw_pixels)} if cfg.TEST.CONTROLS else {}

    optimizer = make_optimizer(cfg, model)
    trainer = Trainer(
        model=model,
        criterion=make_criterion(cfg),
        optimizer=optimizer,
        schedule=make_schedule(cfg, optimizer),
        loader=data.train_loader,
        set_epoch=data.sampler.set_epoch,
        evaluate=partial(test, model),
        device=device,
        folder=folder,
        settings=make_train_settings(cfg),
    )
    result = trainer.run()

    cost = measure_cost(model)
    summary = {name: found.as_dict() for name, found in {"last epoch": result, **controls}.items()}
    save_json(folder / "metrics.json", {**trainer.metrics, "summary": summary, "cost": cost.as_dict()})
    logger.info("last epoch, all files in %s\n%s", folder, result_table(result, controls))
    logger.info("cost\n%s", cost.table())


if __name__ == "__main__":
    run_command(main)
