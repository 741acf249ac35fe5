import json
from pathlib import Path

import numpy as np
import pytest
from toy_training import FreeOfCharge

from engine.results import (
    EvaluationResult,
    log_results,
    missing_table,
    read_history,
    result_table,
    save_results,
)
from evaluation.breakdown import Breakdown
from evaluation.selection import SelectionMetrics
from structures import MISSING_SETTINGS, PerModality, RankingMetrics


def make_metrics(mean_ap: float, rank_1: float) -> RankingMetrics:
    queries = np.full(4, mean_ap)
    return RankingMetrics(
        mean_ap=mean_ap,
        cmc=np.array([rank_1, 1.0]),
        num_queries=4,
        mean_inp=mean_ap / 2,
        average_precisions=queries,
        inverse_negative_penalties=queries / 2,
        first_hits=np.ones(4, dtype=np.int64),
    )


def make_result(mean_ap: float, *, patterns: tuple[int, ...] = (1, 2, 3)) -> EvaluationResult:
    ranking = {pattern: make_metrics(mean_ap + pattern / 100, mean_ap) for pattern in patterns}
    return EvaluationResult(ranking, None, num_samples=8, seconds=1.0)


@pytest.fixture
def results() -> dict[str, EvaluationResult]:
    return {setting: make_result(0.6 - 0.05 * place) for place, setting in enumerate(MISSING_SETTINGS)}


def test_the_table_shows_patterns_controls_and_kept_patches() -> None:
    result = EvaluationResult(
        {1: make_metrics(0.625, 0.75)},
        SelectionMetrics(PerModality(0.5, 0.25, 0.125), 0.4, 0.8, PerModality(0.3, 0.2, 0.1)),
        8,
        1.0,
    )
    table = result_table(result, {"control: untrained": make_result(0.1, patterns=(1,)).main.as_dict()})
    rows = [line.split() for line in table.splitlines()]
    assert rows[0] == ["feature", "mAP", "mINP", "R-1", "R-5", "R-10"]
    assert rows[1] == ["1", "original", "62.5", "31.2", "75.0", "100.0", "100.0"]
    assert rows[2][:4] == ["control:", "untrained", "11.0", "5.5"]
    assert "RGB 50.0%, NI 25.0%, TI 12.5% (chance 40.0%, best possible 80.0%)" in table
    assert result.as_dict()["kept_patch_precision"]["NI"] == 25.0
    assert result.as_dict()["kept_patch_precision"]["same_places_RGB"] == 30.0
    assert "the same places in every image: RGB 30.0%, NI 20.0%, TI 10.0%" in result_table(result)


def test_the_table_of_missing_modalities(results: dict[str, EvaluationResult]) -> None:
    lines = missing_table(results).splitlines()
    assert [line[:12].strip() for line in lines] == [
        "",
        "missing",
        "nothing",
        "RGB",
        "NI",
        "TI",
        "RGB + NI",
        "RGB + TI",
        "NI + TI",
        "mean of 6",
    ]
    assert lines[2].split()[1:] == ["61.0", "60.0", "62.0", "60.0", "63.0", "60.0"]
    assert lines[3].split()[1:3] == ["56.0", "55.0"]
    assert lines[-1].split()[3:5] == ["43.5", "42.5"]  # the mean of 0.55, 0.5, …, 0.3 is 0.425
    assert max(map(len, lines)) <= 80


def test_one_setting_has_no_table_of_its_own(
    caplog: pytest.LogCaptureFixture, results: dict[str, EvaluationResult]
) -> None:
    with caplog.at_level("INFO"):
        log_results("w.pth", {"nt": results["nt"]}, FreeOfCharge())
    assert "result of w.pth without NI + TI" in caplog.text
    assert "mean of" not in caplog.text
    with caplog.at_level("INFO"):
        log_results("w.pth", results, FreeOfCharge())
    assert "mean of 6" in caplog.text


def test_all_numbers_are_saved(tmp_path: Path, results: dict[str, EvaluationResult]) -> None:
    save_results(tmp_path / "m.json", results, Breakdown((), ()), FreeOfCharge())
    content = json.loads((tmp_path / "m.json").read_text())
    assert content["result"] == content["missing"]["complete"]
    assert content["missing"]["nt"]["pattern_3"]["mAP"] == pytest.approx(33)
    assert content["breakdown"] == {"identities": [], "camera_pairs": []}
    assert content["cost"] == {"gflops": 0}


def test_history_of_the_run_that_made_the_weights(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    weights = str(tmp_path / "best.pth")
    assert read_history(weights) == {"choice": ""}
    (tmp_path / "metrics.json").write_text('{"epochs": [1], "summary": {"a": 2}, "cost": 3}')
    assert read_history(weights) == {"choice": "", "epochs": [1], "summary": {"a": 2}}
    assert not caplog.records
    for broken in ("{", "[]", '{"epochs": []}'):
        (tmp_path / "metrics.json").write_text(broken)
        assert read_history(weights) == {"choice": ""}
    assert caplog.text.count("training is not shown") == 3
