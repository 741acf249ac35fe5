"""The code of docs/extending.md, run from a folder of its own: nothing of the checkout is changed."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from conftest import ROOT
from modeling.branches import Branch

BASELINE = str(ROOT / "configs" / "Synthetic" / "Baseline.yml")


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of the page, with the loss of the page, in files of their own."""
    page = (ROOT / "docs" / "extending.md").read_text()
    branch, loss = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(branch.splitlines()) <= 40
    path = tmp_path_factory.mktemp("outside") / "gated.py"
    path.write_text(branch.replace("if __name__", "import length  # noqa: F401\n\nif __name__"))
    (path.parent / "length.py").write_text(loss)
    return path


def run(*words: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def runs(gated: Path, mini_settings: list[str]) -> dict[int, Path]:
    """A run folder for one and for two processes, both trained for one epoch."""
    settings = [
        *mini_settings,
        "SOLVER.MAX_EPOCHS",
        "1",
        "SOLVER.WARMUP_ITERS",
        "0",
        "TEST.CONTROLS",
        "False",
    ]
    folders = {processes: gated.parent / f"run_{processes}" for processes in (1, 2)}
    for processes, folder in folders.items():
        launcher = (
            ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"] if processes > 1 else []
        )
        switches = ["MODEL.GATED", "True", "MODEL.LENGTH_LOSS", "True"]
        words = [str(gated), "--config_file", BASELINE, *settings, *switches]
        run(*launcher, *words, "OUTPUT_DIR", str(folder), folder=gated.parent)
    return folders


def test_losses_cost_and_patterns_follow_from_the_branch(runs: dict[int, Path]) -> None:
    metrics = json.loads((runs[1] / "metrics.json").read_text())
    expected = {"ori/id", "ori/length", "gated/id", "gated/triplet", "gated/length", "gated/balance"}
    assert expected <= set(metrics["epochs"][0])
    assert {"pattern_1", "pattern_2", "pattern_3"} <= set(metrics["summary"]["last epoch"])
    assert set(metrics["cost"]["parts"]) == {"backbone", "GatedFusion", "heads", "total"}
    weights = torch.load(runs[1] / "last.pth", weights_only=True)["model"]
    assert weights["branches.gated.gate.weight"].shape == (3, 192)
    assert not torch.equal(weights["branches.gated.gate.bias"], torch.zeros(3))


def test_two_processes_train_the_same_model(runs: dict[int, Path]) -> None:
    one, two = (torch.load(runs[n] / "last.pth", weights_only=True) for n in (1, 2))
    assert one["progress"]["step"] == two["progress"]["step"] >= 2
    gates = [content["model"]["branches.gated.gate.weight"] for content in (one, two)]
    torch.testing.assert_close(*gates, atol=1e-3, rtol=0)


def test_the_report_has_the_patterns_of_the_branch(gated: Path, runs: dict[int, Path]) -> None:
    program = "import gated, sys, test_net; test_net.main(sys.argv[1:])"
    words = ["--config_file", str(runs[1] / "config.yml"), "--report", str(gated.parent / "report")]
    run("-c", program, *words, "TEST.WEIGHT", str(runs[1] / "last.pth"), folder=gated.parent)
    summary = (gated.parent / "report" / "data" / "summary.js").read_text()
    assert "GatedFusion" in summary
    assert '"original + fused"' in summary


def test_a_study_trains_the_branch_once_its_script_is_imported(gated: Path) -> None:
    study = f"base: {BASELINE}\nseeds: [1]\nvariants: {{gated: {{program: gated.py, MODEL.GATED: True}}}}\n"
    (gated.parent / "study.yml").write_text(study)
    program = "import gated, sys, studies.__main__ as studies; studies.main(sys.argv[1:])"
    listed = run("-c", program, "run", "study.yml", "--dry_run", folder=gated.parent)
    assert "python gated.py --overwrite" in listed
    assert "MODEL.GATED True" in listed


def test_what_is_registered_twice_or_in_no_section_is_refused() -> None:
    from config import register_key
    from modeling.make_model import register_branch
    from solver.build import register_loss

    with pytest.raises(ValueError, match="there is a branch 'sdtps' already"):
        register_branch("sdtps", lambda cfg, sizes: {})
    with pytest.raises(ValueError, match="there is a loss 'triplet' already"):
        register_loss("triplet", lambda cfg: None)
    with pytest.raises(ValueError, match=r"there is a key MODEL\.HDM already; choose another name"):
        register_key("MODEL.HDM", False)
    for key in ("NOWHERE.KEY", "MODEL"):
        with pytest.raises(ValueError, match="is no new key of MODEL"):
            register_key(key, False)


@pytest.mark.parametrize("name", ["ori", "sdtps", "slimming", "keys", "a.b", "", "Gated"])
def test_a_branch_cannot_take_the_name_of_another(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from config import load_config
    from conftest import SMALL_MODEL
    from modeling import make_model
    from modeling.branches.original import Original

    monkeypatch.setattr(make_model, "_builders", dict(make_model._builders))
    make_model.register_branch("mine", lambda cfg, sizes: {name: Original(sizes.dim)})
    with pytest.raises(ValueError, match=f"a branch cannot be called {name!r}; choose another name"):
        make_model.make_model(load_config(SMALL_MODEL), 5, 2)


def test_a_cell_that_registers_a_branch_or_a_loss_may_run_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    from modeling import make_model
    from solver import build

    monkeypatch.setattr(make_model, "_builders", dict(make_model._builders))
    monkeypatch.setattr(build, "_more_losses", {})
    for _ in range(2):

        def mine(*_: object) -> dict[str, Branch]:
            return {}

        make_model.register_branch("mine", mine)
        build.register_loss("mine", lambda cfg: None)
    assert make_model._builders["mine"] is mine
    with pytest.raises(ValueError, match="there is a branch 'mine' already; choose another name"):
        make_model.register_branch("mine", lambda cfg, sizes: {})
    with pytest.raises(ValueError, match="there is a loss 'mine' already; choose another name"):
        build.register_loss("mine", mine)  # type: ignore[arg-type]


def test_a_branch_that_needs_numbers_while_it_is_built_is_not_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from config import load_config
    from conftest import SMALL_MODEL
    from modeling import make_model
    from modeling.branches.original import Original

    def mine(_: object, sizes: make_model.TokenSizes) -> dict[str, Branch]:
        return {"mine": Original(int(torch.tensor(sizes.dim).item()))}

    monkeypatch.setattr(make_model, "_builders", dict(make_model._builders))
    make_model.register_branch("mine", mine)
    make_model.check_model(load_config(SMALL_MODEL), from_file=False)
    assert "mine" in make_model.make_model(load_config(SMALL_MODEL), 5, 2).branches
