"""What a study can find: against closed forms for normal noise, and from the command line."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from scipy import optimize, stats

from conftest import SMALL_MODEL
from errors import UserError
from studies.__main__ import main
from studies.power import sigma_bound, simulate_lows
from studies.spec import read_spec


def found_by_t_test(sigma: float, seeds: int, power: float = 0.8) -> float:
    """The difference that a paired t-test at 5 % finds with this probability."""
    limit = stats.t.ppf(0.975, seeds - 1)

    def lack(difference: float) -> float:
        return float(stats.nct.sf(limit, seeds - 1, difference * seeds**0.5 / sigma)) - power

    return float(optimize.brentq(lack, 0.01, 100))


@pytest.mark.parametrize("seeds", [5, 10])
def test_noise_of_seeds_alone_gives_the_power_of_the_t_test(seeds: int) -> None:
    differences = np.repeat(np.array([[-1.0], [0.5], [2.0], [-1.5], [0.0]]), 3, axis=1)
    lows = simulate_lows(differences, seeds, studies=400)
    sigma = float(np.std(differences[:, 0], ddof=1))
    assert np.quantile(-lows, 0.8) == pytest.approx(found_by_t_test(sigma, seeds), rel=0.1)


def test_noise_of_queries_alone_gives_the_normal_power_whatever_the_seeds() -> None:
    """1.96 + 0.84 standard errors; the mean of the real differences is no part of it."""
    of_query = np.random.default_rng(1).normal(size=200)
    differences = 7 + np.tile(of_query, (3, 1))
    expected = 2.8016 * of_query.std() / 200**0.5
    for seeds in (3, 10):
        assert np.quantile(-simulate_lows(differences, seeds), 0.8) == pytest.approx(expected, rel=0.1)


def test_the_rest_counts_once() -> None:
    """Noise of every single score, σ = 3: the standard error of 5 × 100 of them, whatever it looks like."""
    differences = np.random.default_rng(2).normal(scale=3, size=(5, 100))
    found = np.quantile(-simulate_lows(differences, 5), 0.8)
    smallest = 2.8016 * 3 / 500**0.5
    assert smallest < found < 2 * smallest  # the interval allows for noise of seeds and of queries


def test_the_bound_of_the_spread_by_hand() -> None:
    """Of five values, chi-square with 4 degrees of freedom is below 0.7107 in 5 % of the cases."""
    values = [1.0, 2.0, 3.0, 4.0, 5.0]
    assert sigma_bound(values) == pytest.approx((10 / 4 * 4 / 0.7107) ** 0.5, rel=1e-3)
    assert sigma_bound([3.0]) is None


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A study of three seeds whose runs are written here."""
    content = {
        "base": str(SMALL_MODEL),
        "overrides": {"SOLVER.MAX_EPOCHS": 2, "SOLVER.WARMUP_ITERS": 1},
        "variants": {"base": {}, "wide": {"SOLVER.BASE_LR": 0.5}},
        "seeds": [1, 2, 3],
        "output": str(tmp_path / "out"),
    }
    (tmp_path / "study.yml").write_text(yaml.safe_dump(content, sort_keys=False))
    return tmp_path / "study.yml"


def finish_runs(study: Path) -> None:
    rng = np.random.default_rng(0)
    for run in read_spec(study).runs:
        run.folder.mkdir(parents=True)
        (run.folder / "config.yml").write_text(run.cfg.dump())
        precisions = np.clip(rng.uniform(0.3, 0.7, 40) + 0.02 * rng.normal(), 0, 1)
        scores = {"mAP": 100 * float(precisions.mean()), "rank_1": 50.0}
        cost = {"parts": {"total": {"gflops": 1.0}}}
        content = {"epochs": [{"epoch": 2}], "summary": {"last epoch": {"pattern_1": scores}}, "cost": cost}
        (run.folder / "metrics.json").write_text(json.dumps(content))
        np.savez(
            run.folder / "query_scores.npz",
            names=np.array([f"{number}.jpg" for number in range(40)]),
            patterns=np.array([1]),
            average_precisions_1=precisions,
            first_hits_1=np.ones(40, dtype=int),
        )


def test_the_command_writes_a_table_and_says_it_in_words(study: Path) -> None:
    message = "has no variant that shares two finished seeds with base; run the study first"
    with pytest.raises(UserError, match=message):
        main(["power", str(study)])
    finish_runs(study)
    away = [study.parent / "out" / "wide" / f"seed_{seed}" for seed in (1, 2)]
    for folder in away:
        folder.rename(f"{folder}.away")
    with pytest.raises(UserError, match=message):  # base is whole, and wide has one seed
        main(["power", str(study)])
    for folder in away:
        Path(f"{folder}.away").rename(folder)
    main(["power", str(study)])
    base, wide = json.loads((study.parent / "out" / "power.json").read_text())
    assert (base["finds"], base["chance"], len(base["values"])) == ({}, None, 3)
    assert wide["finds"]["3"] > wide["finds"]["5"] > wide["finds"]["10"] > 0
    assert wide["sigma_bound"] > np.std(wide["values"], ddof=1)
    page = (study.parent / "out" / "power.md").read_text()
    assert "If wide, the noisiest variant, were truly 2 mAP better than base, a study with five seeds" in page
    assert f"| {wide['finds']['3']:.1f} | {wide['finds']['5']:.1f} | {wide['finds']['10']:.1f} |" in page
