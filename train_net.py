"""Train a model: `python train_net.py --config_file configs/RGBNT201/DeMo_SDTPS.yml KEY VALUE …`."""

from engine.arguments import answer_early, train_arguments

if __name__ == "__main__":
    answer_early(train_arguments)  # --help, mistakes and Ctrl-C, before the slow imports

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path

from config import check_resumable, load_config, warn_about_unused
from datasets.build import build_data
from engine.build import make_device, make_evaluation, make_train_settings
from engine.checkpoint import find_checkpoint
from engine.command import run_command
from engine.distributed import World
from engine.final import score_epochs
from engine.results import write_metrics
from engine.run_folder import open_run_folder, reset_run_folder
from engine.runtime import seed_everything
from engine.train import Trainer
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
    open_run_folder(folder, overwrite=args.overwrite, resume=args.resume is not None)
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
        untrained = deepcopy(model) if cfg.TEST.CONTROLS and earlier is None else None
        model.to(device).gather_batch = world.gather_batch
        test = make_evaluation(cfg, data.test, device, world)
        seen = data.validation or data.test  # all that training may look at
        evaluate = test if seen is data.test else make_evaluation(cfg, seen, device, world)
        optimizer = make_optimizer(cfg, model)
        trainer = Trainer(
            model=model,
            criterion=make_criterion(cfg),
            optimizer=optimizer,
            schedule=make_schedule(cfg, optimizer),
            loader=data.train_loader,
            set_epoch=data.sampler.set_epoch,
            on_epoch=model.set_epoch,
            evaluate=lambda check_stop: evaluate(model, check_stop=check_stop),
            device=device,
            folder=folder,
            settings=make_train_settings(cfg),
            world=world,
            draw_pictures=make_selection_watch(cfg, model, seen.loader, device),
        )
        seed_everything(cfg.SOLVER.SEED + world.rank)  # each process draws its own noise
        if earlier is not None:
            trainer.resume(earlier)
        reset_run_folder(folder, cfg.dump(), keep=args.resume is not None)
        scores = score_epochs(trainer, trainer.run(), test, untrained)
        if world.is_main:
            write_metrics(folder, epochs=trainer.progress.epochs, scores=scores, cost=measure_cost(model))


if __name__ == "__main__":
    run_command(main)
