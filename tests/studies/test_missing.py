"""Missing modalities, over the runs of a study."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

import test_net as test_entry
import train_net as train_entry
from conftest import SMALL_MODEL
from errors import UserError
from studies.__main__ import main
from studies.missing import read_matrix, table
from studies.run_folder import finished_runs


def test_runs_are_evaluated_once(
    tmp_path: Path,
    mini_settings: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    study = tmp_path / "study"
    run = study / "small" / "seed_1"
    quick = ["SOLVER.EVAL_PERIOD", "2", "TEST.CONTROLS", "False", "OUTPUT_DIR", str(run)]
    train_entry.main(["--config_file", str(SMALL_MODEL), *mini_settings, *quick])
    main(["missing", str(study)])
    first = capsys.readouterr().out
    found = json.loads((run / "missing.json").read_text())["missing"]
    complete, without_rgb = (found[name]["pattern_3"]["mAP"] for name in ("complete", "r"))
    assert f"| small | {complete:.1f} | {without_rgb:.1f} |" in first
    assert (
        "| variant | nothing | RGB | NI | TI | RGB + NI | RGB + TI | NI + TI | mean of 6 | Δ nothing to"
        in first
    )

    main(["missing", str(study), "--any_to_any"])
    matrix = json.loads((run / "any_to_any.json").read_text())["any_to_any"]
    (cell,) = (c for c in matrix["cells"] if (c["query"], c["gallery"]) == (["RGB"], ["TI"]))
    scores = read_matrix({"any_to_any": matrix})
    assert scores["RGB → TI"] == cell["mAP"]
    assert len(scores) == 9 + 2
    across = capsys.readouterr().out
    assert f"| {scores['mean of 12 without a common modality']:.1f} | – | – |" in across

    main(["missing", str(study), "--shared_space"])
    shared = json.loads((run / "shared_space.json").read_text())["any_to_any"]
    assert (matrix["shared_space"], shared["shared_space"]) == (False, True)
    assert read_matrix({"any_to_any": shared}).keys() == scores.keys()
    assert f"| {shared['cross_modality_mean']['mAP']:.1f} | – | – |" in capsys.readouterr().out

    monkeypatch.setattr(test_entry, "main", lambda argv: pytest.fail("it was evaluated before"))
    main(["missing", str(study), "--variants", "small"])
    assert capsys.readouterr().out.splitlines()[-1] == first.splitlines()[-1]


def test_changes_are_those_of_equal_seeds() -> None:
    """Of the first and the last column: +2 and +4 with seeds 1 and 2; seed 3 has no counterpart.

    The interval by Student's t of two differences that are 2 apart: 12.706 * sqrt(2) / sqrt(2).
    """
    found = {
        "other": {
            "seed_1": {"all": 12.0, "none": 1.0},
            "seed_2": {"all": 14.0, "none": 1.0},
            "seed_3": {"all": 99.0, "none": 1.0},
        },
        "base": {"seed_1": {"all": 10.0, "none": 0.0}, "seed_2": {"all": 10.0, "none": 0.0}},
    }
    header, _, other, base = table(found).splitlines()
    assert header == "| variant | all | none | Δ all to base | Δ none to base |"
    assert other.endswith("| +3.00 ± 12.71 | +1.00 ± 0.00 |")
    assert base.endswith("| – | – |")


def test_a_variant_without_runs_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="wide holds no finished runs"):
        main(["missing", str(tmp_path), "--variants", "wide"])


def test_a_run_of_a_patched_trainer_is_refused(tmp_path: Path) -> None:
    run = tmp_path / "own_only" / "seed_1"
    run.mkdir(parents=True)
    (run / "metrics.json").write_text(json.dumps({"epochs": [], "summary": {}}))
    (run / "study.json").write_text(json.dumps({"program": "studies/controls/own_only.py"}))
    with pytest.raises(UserError, match=r"seed_1 was trained by .*own_only\.py, and what that registers"):
        main(["missing", str(tmp_path)])


def test_a_run_of_a_program_that_is_imported_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "study" / "gated" / "seed_1"
    run.mkdir(parents=True)
    (run / "metrics.json").write_text(json.dumps({"epochs": [], "summary": {}}))
    (run / "study.json").write_text(json.dumps({"program": "own_branch.py"}))
    monkeypatch.chdir(tmp_path)
    module = ModuleType("own_branch")
    module.__file__ = str(tmp_path / "own_branch.py")
    monkeypatch.setitem(sys.modules, "own_branch", module)
    assert finished_runs(tmp_path / "study", None) == {"gated": [run]}
