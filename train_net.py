"""Train a model: `python train_net.py --config_file configs/RGBNT201/DeMo_SDTPS.yml KEY VALUE …`."""

from engine.arguments import answer_early, train_arguments

if __name__ == "__main__":  # --help, mistakes and Ctrl-C are answered before the slow imports
    early = answer_early(train_arguments)
    from config.early import refuse_early

    refuse_early(early, whole=True)

import logging
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path

from config import check_resumable, load_config, stored_config, warn_about_unused
from datasets.build import build_data
from engine.build import make_device, make_train_options
from engine.checkpoint import Progress, check_same_data, checked_keys, find_checkpoint
from engine.command import run_command
from engine.distributed import World
from engine.final import score_epochs, write_metrics
from engine.run_folder import open_run_folder, reset_run_folder
from engine.runtime import seed_everything
from engine.train import Trainer
from evaluation.build import make_evaluate
from modeling.checkpoint_names import with_current_names
from modeling.cost import describe_cost
from modeling.make_model import check_model, fill_start, make_model, warn_random_start
from modeling.weights import frozen_entries
from reporting.build import make_selection_watch
from solver.build import make_criterion, make_optimizer, make_schedule

logger = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> None:
    """Read the configuration, train, and report the result and the cost."""
    # The configuration, the run folder, and the checkpoint to resume from.
    args = train_arguments(argv)
    cfg = load_config(args.config_file, args.overrides)
    world, folder = World.from_environment(), Path(cfg.OUTPUT_DIR)
    device = make_device(cfg, world)
    check_model(cfg, from_file=args.resume is None)
    open_run_folder(folder, overwrite=args.overwrite, resume=args.resume is not None)
    warn_about_unused(cfg)
    earlier = find_checkpoint(args.resume, folder)
    if earlier is not None:
        stored = stored_config(earlier.get("config"), file := Path(args.resume or folder / "last.pth"))
        check_resumable(stored, cfg, force=args.force, harmless=checked_keys(earlier), run=file.parent)
        # Checkpoints of version 1 do not say what the run started from.
        earlier["progress"].setdefault("initial_weights", stored.MODEL.PRETRAIN_PATH_T or "random")
    with world.joined(device):
        # The data and the model. The seed gives a resumed run the same untrained model.
        seed_everything(cfg.SOLVER.SEED)
        with world.main_first():
            data = build_data(cfg, earlier, rank=world.rank, num_processes=world.size)
        model = make_model(cfg, *data.split.sizes, modalities=data.split.modalities)
        start, trunk_file = fill_start(cfg, model, earlier, allow_partial=args.allow_partial)
        untrained = deepcopy(model) if cfg.TEST.CONTROLS else None
        model.to(device)
        seen = data.validation or data.test  # all that training may look at
        optimizer = make_optimizer(cfg, model)
        trainer = Trainer(
            model=model,
            criterion=make_criterion(cfg),
            optimizer=optimizer,
            schedule=make_schedule(cfg, optimizer),
            loader=data.train_loader,
            set_epoch=data.sampler.set_epoch,
            evaluate=make_evaluate(cfg, seen, device, world),
            device=device,
            folder=folder,
            options=make_train_options(cfg, {**data.split.as_dict(), "fingerprints": data.fingerprints}),
            progress=Progress(**start),
            rename=with_current_names,
            frozen=frozen_entries(model),
            trunk_file=trunk_file,
            world=world,
            draw_pictures=make_selection_watch(cfg, seen.loader, device),
        )
        seed_everything(cfg.SOLVER.SEED + world.rank)  # each process draws its own noise
        if earlier is not None:
            check_same_data(earlier, data.fingerprints, force=args.force)
            trainer.resume(earlier)
        # Train, then score the last and the best epoch on the test split.
        warn_random_start(cfg, trainer.progress.initial_weights)
        checkpoints = trainer.checkpoints_to_come()
        reset_run_folder(folder, cfg.dump(), keep=args.resume is not None, checkpoints=checkpoints)
        test = make_evaluate(cfg, data.test, device, world)
        last, summary = score_epochs(trainer, trainer.run(), test, untrained)
        if world.is_main:
            cost, text = describe_cost(model, data.test.modalities)
            write_metrics(trainer, last, summary, cost)
            warn_random_start(cfg, trainer.progress.initial_weights)  # again, below the scores
            logger.info("cost\n%s", text)


if __name__ == "__main__":
    run_command(main)
