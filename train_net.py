"""Train a model: `python train_net.py --config_file configs/RGBNT201/DeMo_SDTPS.yml KEY VALUE …`."""

from engine.arguments import train_arguments

if __name__ == "__main__":
    train_arguments(None)  # --help and mistakes are answered before the slow imports

from collections.abc import Sequence
from pathlib import Path

from config import check_resumable, load_config, warn_about_unused
from datasets.build import build_data
from engine.build import make_device, make_evaluation, make_train_settings
from engine.checkpoint import find_checkpoint
from engine.distributed import World
from engine.evaluate import raw_pixels
from engine.results import write_metrics
from engine.setup import begin_run, run_command, seed_everything, start_run
from engine.train import Trainer
from evaluation.build import make_evaluator
from modeling.flops import measure_cost
from modeling.make_model import make_model
from modeling.weights import load_pretrained
from reporting.build import make_selection_watch
from solver.build import make_criterion, make_optimizer, make_schedule


def main(argv: Sequence[str] | None = None) -> None:
    """Read the configuration, train, and report the result and the cost."""
    args = train_arguments(argv)
    cfg = load_config(args.config_file, args.settings)
    world = World.from_environment()
    device = make_device(cfg, world)
    folder = Path(cfg.OUTPUT_DIR)
    start_run(folder, overwrite=args.overwrite, resume=args.resume is not None)
    warn_about_unused(cfg)
    earlier = find_checkpoint(args.resume, folder)
    if earlier is not None:
        check_resumable(earlier["config"], cfg, force=args.force)
    with world.joined(device):
        seed_everything(cfg.SOLVER.SEED)
        with world.main_first():
            data = build_data(cfg, rank=world.rank, num_processes=world.size)
        model = make_model(cfg, data.num_classes, data.num_cameras, data.num_views)
        if cfg.MODEL.PRETRAIN_PATH_T and earlier is None:
            load_pretrained(model, cfg.MODEL.PRETRAIN_PATH_T, allow_partial=args.allow_partial)
        model.to(device).gather_batch = world.gather_batch
        evaluator = make_evaluator(cfg, data.query_rows, data.gallery_rows, data.protocol)
        test = make_evaluation(cfg, data.test_loader, evaluator, device, world)
        with_controls = cfg.TEST.CONTROLS and earlier is None
        controls = {"untrained": test(model), "raw pixels": test(raw_pixels)} if with_controls else {}
        optimizer = make_optimizer(cfg, model)
        trainer = Trainer(
            model=model,
            criterion=make_criterion(cfg),
            optimizer=optimizer,
            schedule=make_schedule(cfg, optimizer),
            loader=data.train_loader,
            set_epoch=data.sampler.set_epoch,
            on_epoch=model.set_epoch,
            evaluate=lambda check_stop: test(model, check_stop=check_stop),
            device=device,
            folder=folder,
            settings=make_train_settings(cfg),
            world=world,
            draw_pictures=make_selection_watch(cfg, model, data.test_loader, device),
        )
        seed_everything(cfg.SOLVER.SEED + world.rank)  # each process draws its own noise
        if earlier is not None:
            trainer.resume(earlier)
        begin_run(folder, cfg.dump(), keep=args.resume is not None)
        result = trainer.run()
        if world.is_main:
            epochs, parts, cost = trainer.progress.epochs, evaluator.breakdown(), measure_cost(model)
            write_metrics(folder, epochs=epochs, result=result, breakdown=parts, controls=controls, cost=cost)


if __name__ == "__main__":
    run_command(main)
