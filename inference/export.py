"""Export a model: one graph from three images to a descriptor, for ONNX Runtime or for `torch.export.load`.

The graph takes plain images and does the rest itself: normalisation, missing modalities, backbone, branches,
return pattern. `verify` runs what was exported beside the model.
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from tqdm import tqdm

from datasets.transforms import EvalTransform
from errors import UserError
from modeling.reid_model import BEYOND_THE_TABLE, MultiModalReID
from reporting.extra import import_extra
from reporting.pictures import denormalise
from structures import HeadOutput, ModalBatch, Modality, ModelOutput, PerModality, Role

Arrays: TypeAlias = Mapping[str, np.ndarray]
Run: TypeAlias = Callable[[Arrays], np.ndarray]
"""Runs an exported file: its inputs by name, in the order of `input_names`, to `features` (B, D)."""

TOLERANCE = 1e-4
"""How far a feature may differ from the model's; each row has length 1."""
BATCHES = (1, 3, 7)
"""The batches that `verify` runs."""
OPSET = 18
METADATA = "metadata.json"
"""The file in a .pt2 archive that says what ONNX keeps in its metadata."""
LARGEST = 2**31
"""Bytes that one ONNX file can hold."""


class ImagesToFeatures(nn.Module):
    """What is exported: images in [0, 1], which modalities are there, and perhaps cameras -> descriptors.

    Args:
        model: is put into evaluation mode.
        transform: of the test images; its normalisation becomes part of the graph.
        pattern: the return pattern.
        after_neck: take the features after the BNNeck instead of before.
    """

    pixel_mean: Tensor
    pixel_std: Tensor

    def __init__(
        self, model: MultiModalReID, transform: EvalTransform, *, pattern: int, after_neck: bool = False
    ) -> None:
        super().__init__()
        self.model = model
        self.size = transform.size
        self.pattern, self.after_neck = pattern, after_neck
        # The scene of an image of your own is not known, so that an embedding of views does not ask.
        self.takes_camera = model.backbone.camera_embed is not None and not model.num_views
        # Not "mean": a node of that name may be in the graph, and ONNX allows it once.
        self.register_buffer("pixel_mean", torch.tensor(transform.mean).view(3, 1, 1))
        self.register_buffer("pixel_std", torch.tensor(transform.std).view(3, 1, 1))
        self.eval()

    @property
    def input_names(self) -> tuple[str, ...]:
        """The inputs in their order: rgb, ni, ti, present, and camera if the model embeds cameras."""
        return (*(m.key for m in Modality), "present", *(["camera"] if self.takes_camera else []))

    def forward(
        self, rgb: Tensor, ni: Tensor, ti: Tensor, present: Tensor, camera: Tensor | None = None
    ) -> Tensor:
        """Embed B triples.

        Args:
            rgb: (B, 3, H, W), in [0, 1]; anything where it is missing.
            ni: likewise.
            ti: likewise.
            present: (B, 3) booleans: which of rgb, ni and ti are there.
            camera: (B,) integers, from 0 for the first camera of training; -1 for any other camera.

        Returns:
            (B, D), each row of length 1.
        """
        # What is missing is zeros after normalisation, as in evaluation.
        there = PerModality(*present.unbind(dim=1))
        normalised = PerModality(rgb, ni, ti).map(lambda images: (images - self.pixel_mean) / self.pixel_std)
        images = PerModality.build(
            lambda m: normalised.of(m).masked_fill(~there.of(m).view(-1, 1, 1, 1), 0.0)
        )
        # A camera that training never saw is beyond the table of embeddings.
        unknown = torch.full_like(there.rgb, BEYOND_THE_TABLE, dtype=torch.long)
        cameras = unknown if camera is None else torch.where(camera < 0, unknown, camera)
        output: ModelOutput = self.model(ModalBatch(images, unknown, cameras, unknown, present=there))
        return F.normalize(output.embedding(self.pattern, after_neck=self.after_neck), dim=1)

    @torch.no_grad()
    def run(self, inputs: Arrays) -> np.ndarray:
        """The features of inputs by name, as an exported file gives them."""
        tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in inputs.items()}
        features: Tensor = self(**tensors)
        return features.numpy()


def random_inputs(size: int, image_size: Sequence[int]) -> dict[str, np.ndarray]:
    """Images of noise, (size, 3, H, W) each, by modality; always the same."""
    generator = np.random.default_rng(0)
    return {m.key: generator.random((size, 3, *image_size), dtype=np.float32) for m in Modality}


def complete_inputs(graph: ImagesToFeatures, images: Arrays, present: np.ndarray) -> dict[str, np.ndarray]:
    """The inputs of a graph: the first B images, and of the cameras an unseen one and the first ones."""
    size = len(present)
    inputs = {name: array[:size] for name, array in images.items()} | {"present": present}
    if graph.takes_camera:
        inputs["camera"] = np.arange(-1, size - 1)
    return inputs


def trace(graph: ImagesToFeatures) -> ExportedProgram:
    """The graph as torch.export sees it, for any batch."""
    size = 2  # any but 1, which torch would take for a constant
    inputs = complete_inputs(
        graph, random_inputs(size, graph.size), np.ones((size, len(Modality)), dtype=bool)
    )
    batch = Dim("batch", min=1)
    with torch.no_grad():
        return torch.export.export(
            graph,
            tuple(torch.from_numpy(inputs[name]) for name in graph.input_names),
            dynamic_shapes={name: {0: batch} for name in graph.input_names},
            strict=False,
        )


def to_onnx(graph: ImagesToFeatures, metadata: Mapping[str, Any]) -> bytes:
    """The content of an ONNX file; `metadata` goes into it as JSON by name."""
    onnx, opset = _import_onnx("onnx"), _import_onnx("onnxscript").opset18
    if (held := sum(tensor.nbytes for tensor in graph.state_dict().values())) >= LARGEST:
        raise UserError(
            f"the weights take {held / 2**30:.1f} GB, and an ONNX file holds at most 2; export to .pt2"
        )

    def sort_stable(values: Any, *, stable: bool = True, dim: int = -1, descending: bool = False) -> Any:
        # ONNX's TopK of all values gives the earlier of equal ones first: a stable sort.
        count = opset.Gather(opset.Shape(values), opset.Constant(value_ints=[dim]), axis=0)
        return opset.TopK(values, count, axis=dim, largest=int(descending), sorted=1)

    with _quiet():
        program = torch.onnx.export(
            trace(graph),
            dynamo=True,
            verbose=False,
            opset_version=OPSET,
            input_names=list(graph.input_names),
            output_names=["features"],
            custom_translation_table={torch.ops.aten.sort.stable: sort_stable},
        )
        assert program is not None
        model = program.model_proto
    # The batch by its name; shapes between the nodes, which nobody needs, have another name for it.
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    del model.graph.value_info[:]
    onnx.helper.set_model_props(model, {name: json.dumps(value) for name, value in metadata.items()})
    return bytes(model.SerializeToString())


def to_pt2(graph: ImagesToFeatures, metadata: Mapping[str, Any]) -> bytes:
    """The content of a file for `torch.export.load`; `metadata` goes into it as `metadata.json`."""
    file = io.BytesIO()
    torch.export.save(trace(graph), file, extra_files={METADATA: json.dumps(metadata)})
    return file.getvalue()


def quantise(content: bytes) -> bytes:
    """An ONNX file whose large matrices are 8-bit integers; activations are rounded while it runs."""
    onnx, quantization = _import_onnx("onnx"), _import_onnx("onnxruntime.quantization")
    model = onnx.load_from_string(content)
    properties = {entry.key: entry.value for entry in model.metadata_props}
    with _quiet(), TemporaryDirectory() as folder:
        path = Path(folder) / "int8.onnx"
        # A scale for each output channel keeps channels of small weights.
        quantization.quantize_dynamic(model, path, op_types_to_quantize=["MatMul"], per_channel=True)
        model = onnx.load(path)
    onnx.helper.set_model_props(model, {**properties, "quantisation": json.dumps("int8, dynamic")})
    return bytes(model.SerializeToString())


def open_onnx(content: bytes) -> Run:
    """Run an ONNX file on the CPU, with as many threads as torch has."""
    runtime = _import_onnx("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    def run(inputs: Arrays) -> np.ndarray:
        features: np.ndarray = session.run(["features"], dict(inputs))[0]
        return features

    return run


def open_pt2(content: bytes) -> Run:
    """Run a file of `torch.export.save`."""
    module = torch.export.load(io.BytesIO(content)).module()

    @torch.no_grad()
    def run(inputs: Arrays) -> np.ndarray:
        features: Tensor = module(*map(torch.from_numpy, inputs.values()))
        return features.numpy()

    return run


def measure_differences(run: Run, graph: ImagesToFeatures, images: Arrays) -> dict[str, float]:
    """By case, the largest difference between the features of an exported file and the model's.

    Args:
        run: the exported file.
        graph: what was exported.
        images: by modality, (B, 3, H, W) each; B is the largest of `BATCHES` or more.
    """
    found = {}
    for size in tqdm(BATCHES, desc="verify", unit="batch", leave=False, disable=None):
        complete = np.ones((size, len(Modality)), dtype=bool)
        mixed = complete.copy()  # each triple lacks another modality
        mixed[np.arange(size), np.arange(1, size + 1) % len(Modality)] = False
        for case, present in (("complete", complete), ("a modality missing", mixed)):
            inputs = complete_inputs(graph, images, present)
            found[f"batch {size}, {case}"] = float(np.abs(run(inputs) - graph.run(inputs)).max())
    return found


def verify(run: Run, graph: ImagesToFeatures, images: Arrays) -> dict[str, float]:
    """`measure_differences`, and a UserError if one is too large."""
    found = measure_differences(run, graph, images)
    for case, difference in found.items():
        if not difference <= TOLERANCE:  # NaN is too large
            raise UserError(
                f"the export is wrong and was not written: at {case}, a feature differs from the model's by "
                f"{difference:.1e}, and at most {TOLERANCE:.0e} is allowed"
            )
    return found


def compare_features(run: Run, graph: ImagesToFeatures, images: Arrays) -> tuple[float, float]:
    """The largest difference of a feature from the model's, and the mean cosine, of complete triples."""
    size = len(images[Modality.RGB.key])
    inputs = complete_inputs(graph, images, np.ones((size, len(Modality)), dtype=bool))
    exported, own = run(inputs), graph.run(inputs)
    return float(np.abs(exported - own).max()), float((exported * own).sum(axis=1).mean())


def as_model(run: Run, graph: ImagesToFeatures) -> Callable[[ModalBatch], ModelOutput]:
    """An exported file in place of a model, so that `evaluate` can score it."""
    mean, std = graph.pixel_mean.flatten().tolist(), graph.pixel_std.flatten().tolist()

    def model(batch: ModalBatch) -> ModelOutput:
        images = batch.images.map(lambda images: denormalise(images, mean, std).numpy())
        present = torch.stack(batch.present, dim=1)
        inputs = {m.key: images.of(m) for m in Modality} | {"present": present.numpy()}
        if graph.takes_camera:
            inputs["camera"] = batch.camera_ids.numpy()
        features = torch.from_numpy(run(inputs))
        return ModelOutput((HeadOutput("exported", features, features, features, Role.ORIGINAL),))

    return model


@contextmanager
def _quiet() -> Iterator[None]:
    """For a while no log but errors: the exporters tell each node that they change."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _import_onnx(name: str) -> Any:
    return import_extra(name, "export")
