"""A trained model on images of your own: files, PIL images or arrays in, descriptors out."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from datasets.build import make_eval_transform
from datasets.dataset import (
    UnreadableImageError,
    blank_absent,
    read_image,
    read_images,
    reason_of,
    resize_images,
)
from datasets.pixels import convert_to, make_upright
from datasets.transforms import EvalTransform
from engine.runtime import choose_device
from errors import UserError, on_one_line
from inference.calibration import Calibration, load_calibration, name_modalities
from inference.compact import Pca, load_pca
from inference.origin import Origin, find_origin
from modeling.reid_model import BEYOND_THE_TABLE, MultiModalReID
from reporting.pictures import denormalise, spread_over_pixels
from structures import RETURN_PATTERNS, ImageRecord, ModalBatch, Modality, ModelOutput, PerModality
from trained import Trained, load_trained
from weight_file import hash_file

logger = logging.getLogger(__name__)

ImageSource: TypeAlias = str | os.PathLike[str] | Image.Image | np.ndarray
"""A file, a PIL image, or an array: (H, W) or (H, W, 3) of 8 bits, or (H, W) of 16 bits.

The three channels of an array are red, green, blue; of what OpenCV reads, give `image[..., ::-1]`.
"""

ON_ERROR = ("raise", "skip")
DEVICES = ("auto", "cpu", "cuda")
READERS = 4  # threads that decode images, which does not hold Python's lock
LONG = 4  # batches from which on a progress bar is shown
DARKENED = 0.25  # brightness of the patches that were not kept


@dataclass(frozen=True)
class Triple:
    """Images of one person, taken together; leave out the modalities that you do not have."""

    rgb: ImageSource | None = None
    ni: ImageSource | None = None
    ti: ImageSource | None = None
    # Its number among the cameras of training, from 0, for a model that embeds cameras. None for a camera of
    # your own, which gets what TEST.UNSEEN_CAMERA says.
    camera: int | None = None

    @property
    def images(self) -> PerModality[ImageSource | None]:
        """The images by modality."""
        return PerModality(self.rgb, self.ni, self.ti)


@dataclass(frozen=True)
class _ReadTriple:
    """A triple as the model takes it."""

    images: PerModality[Tensor]  # normalised, each (3, H, W); zeros where one is missing
    present: PerModality[bool]  # which images are there
    camera: int  # row of the camera embedding


@dataclass(frozen=True)
class Embedded:
    """A part of the triples that `Predictor.stream` was given."""

    features: Tensor  # (n, D), each row of length 1
    indices: tuple[int, ...]  # of the n triples among all
    unreadable: dict[int, str]  # by index, why a triple of this part was skipped


@dataclass(frozen=True)
class Explanation:
    """What a model kept of one triple, in a grid of R x C patches; nothing of what is missing counts."""

    present: PerModality[bool]  # which images are there
    images: PerModality[Tensor]  # as the model saw them, each (3, H, W) in [0, 1]
    kept: PerModality[Tensor]  # indices of the kept patches, each (K,), in [0, R * C)
    scores: PerModality[Tensor]  # each (R, C); larger is kept
    sources: PerModality[dict[str, Tensor]]  # what the scores are made of, by name, each (R, C)

    def draw(self) -> Image.Image:
        """The images that are there, side by side; patches that were not kept are dark."""
        shown = []
        for modality in (m for m in Modality if self.present.of(m)):
            image, kept, scores = (part.of(modality) for part in (self.images, self.kept, self.scores))
            brightness = torch.full((1, scores.numel()), DARKENED)
            brightness[0, kept] = 1.0
            grid = (scores.shape[0], scores.shape[1])
            shown.append(image * spread_over_pixels(brightness, grid, image)[0])
        return Image.fromarray(torch.cat(shown, dim=2).mul(255).round().byte().permute(1, 2, 0).numpy())


@dataclass(frozen=True)
class Verification:
    """Whether two triples show the same person."""

    distance: float  # between the two descriptors, in [0, 2]
    threshold: float  # the largest distance of a match
    same: bool  # whether the distance is not above it


class Predictor:
    """Embeds triples of images. Several threads may use one predictor."""

    def __init__(
        self,
        model: MultiModalReID,
        transform: EvalTransform,
        *,
        device: torch.device,
        pattern: int = 3,
        after_neck: bool = False,
        num_cameras: int = 0,
        batch_size: int = 32,
        origin: Origin | None = None,
        pca: Pca | None = None,
        calibration: Mapping[str, Calibration] | None = None,
    ) -> None:
        """Take a model that is built; `load` builds one from a checkpoint.

        Args:
            model: is moved to the device and put into evaluation mode.
            transform: that of the model's test images.
            device: where the model computes.
            pattern: the return pattern: 1 original features, 2 fused, 3 both.
            after_neck: take the features after the BNNeck instead of before.
            num_cameras: cameras of training.
            batch_size: triples in one forward pass.
            origin: what the descriptors are made with; None for a model that comes from no file.
            pca: shortens the descriptors.
            calibration: the thresholds of `verify`, by `name_modalities`.
        """
        if pattern not in RETURN_PATTERNS:
            raise UserError(f"there is no return pattern {pattern!r}; choose from {list(RETURN_PATTERNS)}")
        if batch_size < 1:
            raise UserError(f"batch_size is {batch_size}; it must be 1 or more")
        self.device = device
        self._model = model.to(device).eval()
        self._transform = transform
        self._pattern, self._after_neck = pattern, after_neck
        self._num_cameras = num_cameras
        self._batch_size = batch_size
        self.origin = origin
        self._pca, self._calibration = pca, calibration
        self._lock = threading.Lock()  # the model keeps the attention of a pass
        self._warned = threading.Lock()  # taken by the thread that warns of images that are not used

    @classmethod
    def load(
        cls,
        weights: str | Path,
        overrides: Sequence[str] = (),
        *,
        config_file: str | Path | None = None,
        device: str | torch.device = "auto",
        pattern: int = 3,
        batch_size: int = 32,
        pca: str | Path | None = None,
        calibration: str | Path | None = None,
    ) -> Predictor:
        """A predictor from a checkpoint; configuration, identities and cameras come from the file.

        Args:
            weights: a checkpoint of this project; DeMo's need `config_file`.
            overrides: `KEY VALUE …`, as on the command line.
            config_file: a YAML file on top of the configuration in the checkpoint.
            device: `cuda`, `cuda:1`, `cpu`, or `auto` for CUDA where there is one; or a torch.device.
            pattern: the return pattern: 1 original features, 2 fused, 3 both.
            batch_size: triples in one forward pass.
            pca: a file of `tools.embed --dim`, made with these weights.
            calibration: a file of `tools.calibrate`, made with these weights and this `pca`.
        """
        name, _, number = str(device).partition(":")
        if name not in DEVICES:
            raise UserError(f"there is no device {str(device)!r}; choose from auto, cpu, cuda and cuda:N")
        trained = load_trained(weights, overrides, config_file=config_file)
        return cls.of(
            trained,
            weights,
            device=choose_device(name, number or trained.cfg.MODEL.DEVICE_ID),
            pattern=pattern,
            batch_size=batch_size,
            pca=pca,
            calibration=calibration,
        )

    @classmethod
    def of(
        cls,
        trained: Trained,
        weights: str | Path,
        *,
        device: torch.device,
        pattern: int = 3,
        batch_size: int = 32,
        pca: str | Path | None = None,
        calibration: str | Path | None = None,
    ) -> Predictor:
        """As `load`, of a checkpoint that `load_trained` has read from `weights`."""
        origin, compact = find_origin(trained, weights, pattern), None
        if pca is not None:
            compact = load_pca(Path(pca), origin)
            origin = replace(origin, pca=hash_file(Path(pca)))
        return cls(
            trained.model,
            make_eval_transform(trained.cfg),
            device=device,
            pattern=pattern,
            after_neck=trained.cfg.TEST.NECK_FEAT == "after",
            num_cameras=len(trained.split.cameras),
            batch_size=batch_size,
            origin=origin,
            pca=compact,
            calibration=None if calibration is None else load_calibration(Path(calibration), origin),
        )

    @property
    def modalities(self) -> tuple[Modality, ...]:
        """What the model uses."""
        return self._model.modalities

    @cached_property
    def dim(self) -> int:
        """D, the numbers in a descriptor."""
        black = np.zeros((8, 8), np.uint8)
        images = PerModality.build(lambda m: black if m is self._model.modalities[0] else None)
        return int(self.embed([Triple(*images)]).shape[1])

    def embed(self, triples: Sequence[Triple], *, on_error: str = "raise") -> Tensor:
        """The descriptors of N triples, (N, D), each of length 1, on the CPU.

        Args:
            triples: N of them.
            on_error: `raise` at the first image that cannot be read; with `skip` the row of its triple is
                NaN, and the log lists the files.
        """
        if not hasattr(triples, "__len__"):
            kind = type(triples).__name__
            raise UserError(f"embed takes a list of triples, not a {kind}; give [triple], or use stream")
        hidden = None if len(triples) > LONG * self._batch_size else True
        with tqdm(total=len(triples), desc="embed", unit="triple", leave=False, disable=hidden) as bar:
            parts = []
            for part in self.stream(triples, on_error=on_error):
                parts.append(part)
                bar.update(len(part.indices) + len(part.unreadable))
        read = [part for part in parts if part.indices]
        dim = read[0].features.shape[1] if read else self.dim
        features = torch.full((len(triples), dim), torch.nan)
        for part in read:
            features[list(part.indices)] = part.features
        return features

    def verify(self, a: Triple, b: Triple) -> Verification:
        """Whether two triples show the same person, by the threshold of the modalities that both have."""
        if self._calibration is None:
            raise UserError(
                "there is no threshold to verify with; make one with python -m tools.calibrate, and give it "
                'as Predictor.load(…, calibration="OUT.json")'
            )
        name, other = (
            name_modalities([m for m in Modality if self._find_used(triple).of(m)]) for triple in (a, b)
        )
        if name != other:
            raise UserError(
                f"one triple has {name} and the other {other}, and a threshold is for equal modalities; "
                "leave out the images that only one of them has"
            )
        if name not in self._calibration:
            raise UserError(
                f"the calibration has no threshold for {name}, only for {', '.join(self._calibration)}; give "
                "images of these, or make it again where triples have all of yours"
            )
        first, second = self.embed([a, b])
        distance, threshold = float((first - second).norm()), self._calibration[name].threshold
        return Verification(distance, threshold, distance <= threshold)

    def stream(
        self, triples: Iterable[Triple], *, on_error: str = "raise", start: int = 0
    ) -> Iterator[Embedded]:
        """The descriptors batch by batch, of any number of triples, in constant memory.

        Args:
            triples: may be a generator; the next batch is read while one is computed.
            on_error: see `embed`; with `skip`, a part lists what it skipped.
            start: index of the first triple.
        """
        if on_error not in ON_ERROR:
            raise UserError(f"on_error is {on_error!r}; choose from {', '.join(ON_ERROR)}")
        if isinstance(triples, Triple):
            raise UserError("stream takes several triples, not one; give [triple]")
        source = iter(triples)
        with ThreadPoolExecutor(READERS) as pool:
            waiting = [pool.submit(self._read, triple) for triple in islice(source, self._batch_size)]
            while waiting:
                upcoming = [pool.submit(self._read, triple) for triple in islice(source, self._batch_size)]
                read, unreadable = {}, {}
                for index, future in enumerate(waiting, start):
                    try:
                        read[index] = future.result()
                    except UnreadableImageError as error:
                        if on_error == "raise":
                            raise
                        unreadable[index] = str(error)
                        logger.warning("triple %d is skipped: %s", index, error)
                features = torch.empty(0, 0)
                if read:
                    features = self._describe(self._forward(list(read.values())))
                yield Embedded(features, tuple(read), unreadable)
                start += len(waiting)
                waiting = upcoming

    def explain(self, triple: Triple) -> Explanation:
        """What the model keeps of a triple; a UserError if it keeps every patch."""
        read = self._read(triple)
        selection = self._forward([read]).selection
        if selection is None:
            raise UserError(
                "this model keeps every patch; take one with MODEL.SLIM_LAYERS or a method that selects, "
                "such as MODEL.USE_SDTPS"
            )

        def to_grid(values: Tensor) -> Tensor:
            return values[0].cpu().view(selection.grid)

        return Explanation(
            present=read.present,
            images=read.images.map(
                lambda image: denormalise(image, self._transform.mean, self._transform.std)
            ),
            kept=selection.indices.map(lambda rows: rows[0]),
            scores=selection.scores.map(to_grid),
            sources=selection.sources.map(
                lambda by_name: {name: to_grid(values) for name, values in by_name.items()}
            ),
        )

    def _describe(self, output: ModelOutput) -> Tensor:
        """The descriptors of a batch, (B, D), each of length 1, on the CPU."""
        features = output.embedding(self._pattern, after_neck=self._after_neck)
        features = F.normalize(features.float(), dim=1).cpu()
        return features if self._pca is None else self._pca.apply(features)

    def _find_used(self, triple: Triple) -> PerModality[bool]:
        """Which images of a triple are there and used by the model; a UserError if there are none."""
        if not isinstance(triple, Triple):
            kind = type(triple).__name__
            raise UserError(f"a triple is a {kind}; give Triple(rgb=…, ni=…, ti=…), with what you have")
        there = triple.images.map(lambda image: image is not None)
        used = self._model.modalities
        check_modalities(there, used)
        if any(there.of(m) for m in Modality if m not in used) and self._warned.acquire(blocking=False):
            message = "images of other modalities than %s are left out: the model does not use them"
            logger.warning(message, _join(used))
        return PerModality.build(lambda m: m in used and there.of(m))

    def _read(self, triple: Triple) -> _ReadTriple:
        """The images as the model takes them, zeros where one is missing, and the camera."""
        present = self._find_used(triple)
        if triple.camera is not None and not 0 <= triple.camera < self._num_cameras:
            raise UserError(
                f"the model was trained with {self._num_cameras} cameras, counted from 0, and camera "
                f"{triple.camera} is not one of them; leave it out for a camera of your own"
            )
        sources = zip(Modality, restrict(triple, self._model.modalities).images, strict=True)
        opened = PerModality(*(None if source is None else _open(source, m) for m, source in sources))
        images = PerModality(*self._transform(resize_images(opened, self._transform)))
        blank_absent(images, present)
        camera = BEYOND_THE_TABLE if triple.camera is None else triple.camera
        return _ReadTriple(images, present, camera)

    @torch.no_grad()
    def _forward(self, triples: Sequence[_ReadTriple]) -> ModelOutput:
        """The model's output for B triples."""
        camera_ids = torch.tensor([triple.camera for triple in triples])
        unknown = torch.full_like(camera_ids, BEYOND_THE_TABLE)
        images = PerModality.build(lambda m: torch.stack([triple.images.of(m) for triple in triples]))
        present = PerModality.build(lambda m: torch.tensor([triple.present.of(m) for triple in triples]))
        batch = ModalBatch(images, unknown, camera_ids, unknown, present=present)
        with self._lock:
            output: ModelOutput = self._model(batch.to(self.device))
        return output


def triple_of(record: ImageRecord) -> Triple:
    """The images of a record of a data set; a file that holds all three is read here."""
    images = read_images(record) if record.is_strip else record.paths
    return Triple(*images)


def restrict(triple: Triple, modalities: Collection[Modality]) -> Triple:
    """The triple without the images of other modalities."""
    images = PerModality.build(lambda m: triple.images.of(m) if m in modalities else None)
    return Triple(*images, camera=triple.camera)


def check_modalities(present: PerModality[bool], used: Sequence[Modality], what: str = "a triple") -> None:
    """Refuse a triple without any image of the modalities that the model uses; `what` names it."""
    if any(present.of(modality) for modality in used):
        return
    there = [modality for modality in Modality if present.of(modality)]
    found = f"only images of {_join(there)}" if there else "no image"
    raise UserError(f"{what} has {found}, and the model uses {_join(used)}; give at least one of these")


def _join(modalities: Sequence[Modality]) -> str:
    return ", ".join(modality.value for modality in modalities)


def _open(source: ImageSource, modality: Modality) -> Image.Image:
    """An image in colour, upright, with 8 bits per channel."""
    if isinstance(source, (str, os.PathLike)):
        return read_image(Path(source), modality.value, mode="RGB")
    if isinstance(source, np.ndarray):
        colour = source.ndim == 3 and source.shape[2] == 3 and source.dtype == np.uint8
        grey = source.ndim == 2 and source.dtype in (np.uint8, np.uint16)
        if not (colour or grey) or not source.size:
            raise UserError(
                f"an array for {modality.value} has shape {source.shape} and type {source.dtype}; give "
                "(H, W, 3) of uint8, or (H, W) of uint8 or uint16"
            )
        source = Image.fromarray(source)
    if not isinstance(source, Image.Image):
        kind = type(source).__name__
        raise UserError(f"the {modality.value} image is a {kind}; give a file, a PIL image or an array")
    try:
        source.load()  # a file that was opened is decoded here, also a truncated one
        return convert_to(make_upright(source), "RGB")
    except Exception as error:  # as in `read_image`
        name, kind = on_one_line(getattr(source, "filename", "") or "in memory"), modality.value
        reason = reason_of(error)
        raise UnreadableImageError(
            f"cannot read the {kind} image {name} ({reason}): give it as 8-bit RGB, or leave it out",
            f"{name} ({kind}): {reason}",
        ) from error
