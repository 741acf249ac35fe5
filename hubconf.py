"""What torch.hub finds here: `torch.hub.load(CHECKOUT, "demo_sdtps", source="local", weights=…)`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path

_ROOT = Path(__file__).resolve().parent

# Our packages have everyday names, and Python keeps one module of a name.
for _name in sorted(path.parent.name for path in _ROOT.glob("*/__init__.py")):
    _file = getattr(sys.modules.get(_name), "__file__", None)
    if _file and _ROOT not in Path(_file).resolve().parents:
        raise ImportError(
            f"{_ROOT} has a package {_name!r}, and this program has imported another one, {_file}; load the "
            "checkout first, or in a process of its own"
        )

from config import load_config
from inference import Predictor
from modeling.make_model import make_model
from modeling.reid_model import MultiModalReID
from modeling.weights import start_from
from trained import load_trained

dependencies = ["torch", "torchvision", "timm", "yacs", "yaml", "safetensors", "PIL", "tqdm"]

_logger = logging.getLogger(__name__)

_TRUNK = "MODEL.PRETRAIN_PATH_T"
_DEFAULT = _ROOT / "configs" / "RGBNT201" / "DeMo_SDTPS.yml"


def demo_sdtps(
    weights: str | Path | None = None,
    *,
    config_file: str | Path | None = None,
    overrides: Sequence[str] = (),
    num_classes: int = 171,
    num_cameras: int = 4,
) -> MultiModalReID:
    """A model in evaluation mode, trained, with a pre-trained trunk, or with random weights.

    Args:
        weights: a checkpoint. The configuration in it is the starting point; DeMo's need `config_file`.
        config_file: settings on top of the checkpoint's; without weights, in place of
            configs/RGBNT201/DeMo_SDTPS.yml.
        overrides: `KEY VALUE …`, as on the command line. Without weights, MODEL.PRETRAIN_PATH_T loads a
            pre-trained trunk, as training does; the file that a configuration file names is not loaded.
        num_classes: without weights, number of training identities.
        num_cameras: without weights, number of cameras.
    """
    if weights is not None:
        return load_trained(weights, overrides, config_file=config_file).model.eval()
    cfg = load_config(config_file or _DEFAULT, overrides)
    model = make_model(cfg, num_classes, num_cameras)
    start = start_from(model, cfg.MODEL.PRETRAIN_PATH_T if _TRUNK in overrides[::2] else "")
    if start["initial_weights"] == "random":
        _logger.warning("this model has random weights; give weights, or overrides=[%r, FILE]", _TRUNK)
    return model.eval()


predictor = Predictor.load  # an entry of torch.hub: a trained model that embeds images
