"""The growth of a difference from one study to another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from errors import UserError
from studies.__main__ import main


def write_study(folder: Path, gap: float, *, seeds: tuple[int, ...] = (1, 2, 3), first: int = 0) -> Path:
    """Variants `ours` and `plain`, whose average precisions differ by `gap` in every query and seed."""
    for variant, shift in {"ours": gap, "plain": 0.0}.items():
        for seed in seeds:
            run = folder / variant / f"seed_{seed}"
            run.mkdir(parents=True)
            precisions = np.random.default_rng(seed).uniform(0.2, 0.5, 30) + shift
            np.savez(
                run / "query_scores.npz",
                names=np.array([f"{number}.jpg" for number in range(first, first + 30)]),
                patterns=np.array([1, 2]),
                average_precisions_1=np.zeros(30),
                average_precisions_2=precisions,
                first_hits_1=np.ones(30, dtype=int),
                first_hits_2=np.ones(30, dtype=int),
            )
    return folder


def test_growth_of_a_gap(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    studies = [str(write_study(tmp_path / name, gap)) for name, gap in (("easy", 0.1), ("hard", 0.25))]
    main(["gap", *studies, "--variants", "ours", "plain"])
    said = capsys.readouterr().out
    assert "ours − plain, mAP: +10.0 [+10.0, +10.0] in easy" in said
    assert "ours − plain, mAP: +25.0 [+25.0, +25.0] in hard" in said
    assert "from easy to hard by +15.0 [+15.0, +15.0]: grows" in said
    main(["gap", *reversed(studies), "--variants", "ours", "plain"])
    assert "from hard to easy by -15.0 [-15.0, -15.0]: shrinks" in capsys.readouterr().out


def test_seeds_that_one_of_the_studies_lacks_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    studies = [write_study(tmp_path / "a", 0.1), write_study(tmp_path / "b", 0.1, seeds=(2, 9))]
    main(["gap", *map(str, studies), "--variants", "ours", "plain"])
    assert "seeds that all have: seed_2\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"seeds": (8, 9)}, "have no seed in common that both .* and .* were trained with"),
        ({"first": 1}, "only runs with the same queries can be compared"),
    ],
)
def test_studies_that_do_not_fit_are_refused(tmp_path: Path, other: dict[str, int], message: str) -> None:
    studies = [write_study(tmp_path / "a", 0.1), write_study(tmp_path / "b", 0.1, **other)]  # type: ignore[arg-type]
    with pytest.raises(UserError, match=message):
        main(["gap", *map(str, studies), "--variants", "ours", "plain"])


def test_a_variant_that_is_not_there_is_named(tmp_path: Path) -> None:
    study = write_study(tmp_path / "a", 0.1)
    with pytest.raises(UserError, match=r"a/theirs holds no runs"):
        main(["gap", str(study), str(study), "--variants", "theirs", "plain"])
