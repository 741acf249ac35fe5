"""Things that several tests share."""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

# Some processors announce AMX while the system does not permit it. There the first matrix product in bfloat16
# ends the process with an illegal instruction. oneDNN reads the variable when torch is imported; the programs
# that tests start inherit it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from config import load_config
from datasets.synthetic import SyntheticSpec, ensure_synthetic
from dead_workers import pytest_sessionfinish, pytest_testnodedown  # noqa: F401
from evaluation.result import EncodedSamples, EvaluationResult, ScoringOptions
from modeling.make_model import make_model
from modeling.reid_model import MultiModalReID
from modeling.weights import LoadReport, fill_model, read_model
from structures import (
    HeadOutput,
    ModalBatch,
    Modality,
    ModelOutput,
    PerModality,
    RankingMetrics,
    RetrievalSet,
    Role,
)

# A shell starts what stands before an `&` with Ctrl-C ignored, and nohup with SIGHUP ignored. The commands
# obey that; the tests must not depend on it.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

# One thread per test process: several threads wait for each other when other programs need the cores too.
torch.set_num_threads(1)

ROOT = Path(__file__).parent.parent
SMALL_MODEL = ROOT / "tests" / "small_model.yml"
MINIATURE = SyntheticSpec(
    train_ids=8, test_ids=4, cameras=2, train_shots=2, test_shots=2, height=128, width=64
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """For `make soak SOAK="--kills 4"`."""
    parser.addoption("--kills", type=int, default=20, help="how often the soak kills (20)")


LONGEST = ("distributed", "resume", "entry_points", "run", "bad_inputs", "gallery", "export", "extending")
"""The files that take longest, `test_….py`; they come first, so that no process is left alone with one."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first; the order within a file stays."""
    ranks = {f"test_{name}.py": rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path.name, len(ranks)))


def run_away_from_the_project(program: str, folder: Path) -> None:
    """Run a program that imports copied files from `folder`, where nothing of the project can be imported."""
    before = f"import sys; sys.path.insert(0, {str(folder)!r})\n"
    after = "assert not {'structures', 'modeling', 'timm'} & set(sys.modules)\n"
    # -I: isolated, so that the checkout is not on the path.
    result = subprocess.run(
        [sys.executable, "-I", "-c", before + program + after], capture_output=True, text=True, cwd=folder
    )
    assert result.returncode == 0, result.stderr


def load_model(model: MultiModalReID, path: str | Path, *, allow_partial: bool = False) -> LoadReport:
    """Fill a whole model from a file."""
    return fill_model(model, read_model(path), allow_partial=allow_partial)


def save_untrained(
    path: Path, *settings: str, classes: int = 8, modalities: Sequence[Modality] = tuple(Modality)
) -> Path:
    """Save a checkpoint of the small model with random weights, for two cameras, as a run would."""
    cfg = load_config(SMALL_MODEL, ["INPUT.SIZE_TRAIN", "[32, 16]", "INPUT.SIZE_TEST", "[32, 16]", *settings])
    torch.manual_seed(0)
    names = [modality.value for modality in modalities]
    split = {"classes": classes, "cameras": [0, 1], "scenes": [0], "modalities": names}
    model = make_model(cfg, classes, 2, modalities=modalities).state_dict()
    torch.save({"model": model, "config": cfg.dump(), "data": split}, path)
    return path


def is_running(pid: int) -> bool:
    """Whether a process exists and is not just waiting to be reaped."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except (FileNotFoundError, ProcessLookupError):
        return False


def be_rank_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torchrun tells the second of two processes."""
    told = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(autouse=True)
def restore_logging() -> Iterator[None]:
    """A command that a test runs sets up the log of the whole process."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:], root.level = handlers, level
    logging.captureWarnings(False)


@pytest.fixture(scope="session")
def mini_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a drawn miniature under the name RGBNT201: 8 training ids, 4 test ids, masks."""
    root = tmp_path_factory.mktemp("data")
    ensure_synthetic(root, spec=MINIATURE).rename(root / "RGBNT201")
    return root


@pytest.fixture(scope="session")
def mini_settings(mini_root: Path) -> list[str]:
    """Overrides that train the small model on the miniature for two epochs of three steps or so."""
    settings = {
        "DATASETS.NAMES": "RGBNT201",
        "DATASETS.ROOT_DIR": str(mini_root),
        "DATALOADER.NUM_WORKERS": "0",
        "DATALOADER.NUM_INSTANCE": "2",
        "SOLVER.IMS_PER_BATCH": "8",
        "SOLVER.MAX_EPOCHS": "2",
        "SOLVER.WARMUP_ITERS": "1",
        "SOLVER.EVAL_PERIOD": "1",
    }
    return [text for pair in settings.items() for text in pair]


@pytest.fixture
def make_batch() -> Callable[..., ModalBatch]:
    """Random triples with the given identities."""

    def make(person_ids: list[int], size: tuple[int, int] = (32, 16), seed: int = 0) -> ModalBatch:
        generator = torch.Generator().manual_seed(seed)
        images = PerModality.build(lambda _: torch.randn(len(person_ids), 3, *size, generator=generator))
        ids = torch.tensor(person_ids)
        cameras = torch.arange(len(ids)) % 2
        names = tuple(f"{row:06d}.jpg" for row in range(len(ids)))
        return ModalBatch(images, ids, cameras, torch.zeros_like(ids), names)

    return make


def make_triples(
    batches: Sequence[ModalBatch],
    query: Sequence[int] | None = None,
    gallery: Sequence[int] | None = None,
    protocol: str = "camera",
) -> RetrievalSet:
    """Batches as a set to look up; query and gallery are all triples unless given."""
    rows = range(sum(map(len, batches)))
    loader: Any = DataLoader(batches, batch_size=None)  # type: ignore[arg-type]
    return RetrievalSet(
        loader,
        np.array(rows if query is None else query, dtype=np.int64),
        np.array(rows if gallery is None else gallery, dtype=np.int64),
        protocol,
    )


def make_result(ranking: dict[int, RankingMetrics]) -> EvaluationResult:
    """A result with any scores, over four triples of two people, seen by two cameras each."""
    samples = EncodedSamples(
        features={1: torch.eye(4)},
        person_ids=np.array([0, 0, 1, 1]),
        camera_ids=np.array([0, 1, 0, 1]),
        scene_ids=np.zeros(4, dtype=np.int64),
        names=("0.jpg", "1.jpg", "2.jpg", "3.jpg"),
        triples=make_triples([], query=range(4), gallery=range(4)),
        scoring=ScoringOptions(),
        present=PerModality.build(lambda _: np.ones(4, dtype=bool)),
    )
    return EvaluationResult(ranking, samples, seconds=1.0)


class ToyModel(torch.nn.Module):
    """A linear model with one head, to test the engine without a network."""

    def __init__(self, num_classes: int = 4) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(9, num_classes)
        self.encoded: list[str] = []

    def forward(self, batch: ModalBatch, gather: object = None) -> ModelOutput:
        self.encoded += batch.names
        features = torch.cat([images.mean(dim=(2, 3)) for images in batch.images], dim=1)
        logits = self.linear(features)
        return ModelOutput(heads=(HeadOutput("ori", logits, features, features, Role.ORIGINAL),))


@pytest.fixture
def toy_model() -> ToyModel:
    torch.manual_seed(0)
    return ToyModel()
