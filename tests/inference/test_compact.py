"""The PCA: worked by hand, in parts, and its file."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from errors import UserError
from inference.compact import Pca, fit_pca, load_pca
from inference.origin import Origin

ORIGIN = Origin("best.pth", "ab" * 32, 3, {"MODEL.SLIM_KEEP": 0.7, "MODEL.SLIM_LAYERS": [3, 6]})


def drawn(count: int = 50) -> np.ndarray:
    """Descriptors that vary in four of six directions."""
    rng = np.random.default_rng(0)
    return (rng.normal(size=(count, 4)) @ rng.normal(size=(4, 6)) + rng.normal(size=6)).astype(np.float32)


def test_worked_by_hand() -> None:
    """Mean (1, 1); variances 8 / 3 and 2 / 3 along the axes, with n - 1 = 3."""
    points = np.array([[3, 1], [-1, 1], [1, 2], [1, 0]], dtype=np.float32)
    assert fit_pca([points], 2, ORIGIN).scale.tolist() == [1, 1]
    pca = fit_pca([points], 2, ORIGIN, whiten=1.0)
    np.testing.assert_allclose(pca.mean, [1, 1])
    np.testing.assert_allclose(pca.components, np.eye(2), atol=1e-7)
    np.testing.assert_allclose(pca.scale, [(3 / 8) ** 0.5, (3 / 2) ** 0.5], rtol=1e-6)
    # (3, 2) is (2, 1) from the mean: (2 sqrt(3/8), sqrt(3/2)), both sqrt(3/2), then of length 1.
    result = pca.apply(torch.tensor([[3.0, 2.0]]))
    torch.testing.assert_close(result, torch.full((1, 2), 0.5**0.5))


def test_parts_and_fewer_numbers_are_the_same() -> None:
    features = drawn()
    whole = fit_pca([features], 4, ORIGIN, whiten=1.0)
    parts = fit_pca([features[:7], features[7:8], features[8:]], 4, ORIGIN, whiten=1.0)
    np.testing.assert_allclose(parts.components, whole.components, atol=1e-5)
    np.testing.assert_allclose(
        fit_pca([features], 2, ORIGIN).components, whole.shortened(2).components, atol=1e-5
    )
    white = (features - whole.mean) @ whole.components.T * whole.scale
    np.testing.assert_allclose(np.cov(white.T), np.eye(4), atol=1e-4)


@pytest.mark.parametrize(
    ("count", "dim", "message"),
    [
        (50, 7, "--dim is 7, but 50 descriptors of 6 numbers vary in 4 directions; choose 4 or fewer, or"),
        (50, 5, "--dim is 5, but 50 descriptors of 6 numbers vary in 4 directions; choose 4 or fewer, or"),
        (3, 3, "--dim is 3, but 3 descriptors of 6 numbers vary in 2 directions; choose 2 or fewer, or"),
        (1, 1, "a PCA is learned from 2 descriptors or more, and there are 1; add images"),
    ],
)
def test_too_many_numbers(count: int, dim: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        fit_pca([drawn(count)], dim, ORIGIN)
    with pytest.raises(UserError, match="the PCA has 2 numbers; choose from 1 to 2"):
        fit_pca([drawn()], 2, ORIGIN).shortened(3)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    fit_pca([drawn()], 3, ORIGIN).save(tmp_path / "pca.npz")
    return tmp_path / "pca.npz"


def test_the_file_gives_the_same_pca_and_the_same_bytes(file: Path, tmp_path: Path) -> None:
    found = load_pca(file, replace(ORIGIN, weights="elsewhere/best.pth"))  # the content counts, not the name
    features = torch.from_numpy(drawn())
    assert torch.equal(found.apply(features), fit_pca([drawn()], 3, ORIGIN).apply(features))
    found.save(tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == file.read_bytes()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"sha256": "cd" * 32, "weights": "last.pth"},
            "the weights best.pth, which are not those of last.pth",
        ),
        ({"pattern": 1}, "return pattern 3, not 1"),
        ({"pca": "ef" * 32}, "no PCA, not the PCA efefefef…"),
        ({"settings": {"MODEL.SLIM_KEEP": 0.5, "MODEL.SLIM_LAYERS": [3, 6]}}, "MODEL.SLIM_KEEP 0.7, not 0.5"),
        ({"settings": {"MODEL.SLIM_KEEP": 0.7}}, "MODEL.SLIM_LAYERS [3, 6], not None"),
    ],
)
def test_a_file_of_another_origin_is_refused(file: Path, changed: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(f"{file} was made with {message}; make it again")):
        load_pca(file, replace(ORIGIN, **changed))  # type: ignore[arg-type]


def test_a_file_that_is_no_pca(file: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no\.npz cannot be read: No such file"):
        load_pca(tmp_path / "no.npz", ORIGIN)
    for content in (b"", b"text", file.read_bytes()[:300]):
        (tmp_path / "broken.npz").write_bytes(content)
        with pytest.raises(UserError, match=r"broken\.npz is not a PCA of tools\.embed"):
            load_pca(tmp_path / "broken.npz", ORIGIN)
    pca = load_pca(file, ORIGIN)
    Pca(pca.mean[:-1], pca.components, pca.scale, pca.whiten, pca.origin).save(tmp_path / "broken.npz")
    with pytest.raises(UserError, match="or it is damaged"):
        load_pca(tmp_path / "broken.npz", ORIGIN)
