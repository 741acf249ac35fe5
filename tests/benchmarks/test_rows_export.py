"""The rows on exported files, with the model in place of ONNX Runtime: an export takes too long here."""

import numpy as np
import pytest

from benchmarks import rows_export
from benchmarks.bench import TINY
from config import load_config
from datasets.build import make_eval_transform
from inference.export import Arrays, ImagesToFeatures, Run
from modeling.make_model import make_model


@pytest.mark.parametrize(("row", "batch"), [(rows_export.latency, 1), (rows_export.slimmed_throughput, 16)])
def test_torch_and_both_files_are_compared(
    monkeypatch: pytest.MonkeyPatch, row: rows_export.Measure, batch: int
) -> None:
    size = ["INPUT.SIZE_TRAIN", "[32,16]", "INPUT.SIZE_TEST", "[32,16]", "MODEL.STRIDE_SIZE", "[8,8]"]
    cfg = load_config(None, [*size, "MODEL.TRANSFORMER_TYPE", TINY.backbone, "MODEL.DROP_PATH", "0.0"])
    graph = ImagesToFeatures(make_model(cfg, 2, 2), make_eval_transform(cfg), pattern=1)
    slimmed, batches = [], []

    def export(_: str, is_slimmed: bool) -> tuple[ImagesToFeatures, bytes, bytes]:
        slimmed.append(is_slimmed)
        return graph, b"fp32 file", b"int8"

    def open_file(content: bytes) -> Run:
        def run(inputs: Arrays) -> np.ndarray:
            batches.append(len(inputs["present"]))
            return graph.run(inputs) + (0.01 if content == b"int8" else 1e-6)

        return run

    monkeypatch.setattr(rows_export, "_export", export)
    monkeypatch.setattr(rows_export, "open_onnx", open_file)
    found = row(TINY)
    assert slimmed == [batch == 16]
    assert set(batches) == {rows_export.COMPARED, batch}
    assert "RANDOM weights" in found.title
    assert found.met
    assert found.difference == pytest.approx(1e-6, abs=1e-6)
    assert found.notes["int8 difference"] == "1e-02"
    assert found.notes["int8"].endswith("s")  # its time
