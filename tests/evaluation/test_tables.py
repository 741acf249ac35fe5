from dataclasses import replace

import numpy as np
import pytest

from conftest import make_result
from evaluation.result import EvaluationResult
from evaluation.selection import SelectionMetrics
from evaluation.tables import missing_table, result_table, results_text
from structures import MISSING_CONDITIONS, PerModality, RankingMetrics


def make_metrics(mean_ap: float, rank_1: float) -> RankingMetrics:
    """Twenty queries; those that are not right at rank 1 are at rank 2."""
    queries = np.full(20, mean_ap)
    first_hits = np.where(np.arange(20) < round(20 * rank_1), 1, 2)
    return RankingMetrics(queries, queries / 2, first_hits)


@pytest.fixture
def results() -> dict[str, EvaluationResult]:
    scores = {condition: 0.6 - 0.05 * number for number, condition in enumerate(MISSING_CONDITIONS)}
    return {
        condition: make_result({p: make_metrics(score + p / 100, score) for p in (1, 2, 3)})
        for condition, score in scores.items()
    }


def test_the_table_shows_patterns_controls_and_kept_patches() -> None:
    selection = SelectionMetrics(PerModality(0.5, 0.25, 0.125), 0.4, 0.8, PerModality(0.3, 0.2, 0.1))
    result = replace(make_result({1: make_metrics(0.625, 0.75)}), selection=selection)
    table = result_table(result, {"control: untrained": make_metrics(0.11, 0.1).as_dict()})
    rows = [line.split() for line in table.splitlines()]
    assert rows[0] == ["feature", "mAP", "mINP", "R-1", "R-5", "R-10"]
    assert rows[1] == ["1", "original", "62.5", "31.2", "75.0", "100.0", "100.0"]
    assert rows[2][:4] == ["control:", "untrained", "11.0", "5.5"]
    assert "RGB 50.0%, NI 25.0%, TI 12.5% (chance 40.0%, best possible 80.0%)" in table
    assert result.as_dict()["kept_patch_precision"]["NI"] == 25.0
    assert result.as_dict()["kept_patch_precision"]["same_indices_RGB"] == 30.0
    assert "the same patches in every image: RGB 30.0%, NI 20.0%, TI 10.0%" in table
    alone = result_table(replace(result, slimming=selection))
    assert "kept patches" not in alone  # they are those that slimming left, and one line says it
    assert "tokens left by slimming on the person: RGB 50.0%" in alone


def test_skipped_queries_are_counted() -> None:
    metrics = make_metrics(0.5, 0.5)
    metrics.first_hits[:3] = 0
    table = result_table(make_result({1: metrics}))
    assert "17 queries, 4 distinct test triples" in table
    assert "3 queries have no positive in the gallery and are left out" in table


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


def test_one_condition_has_no_table_of_its_own(results: dict[str, EvaluationResult]) -> None:
    text = results_text("w.pth", "", {"nt": results["nt"]})
    assert text.startswith("result of w.pth without NI + TI\n")
    assert "mean of" not in text
    text = results_text("w.pth", "epoch 3", results)
    assert text.startswith("result of w.pth (epoch 3)\n")
    assert "mean of 6" in text
