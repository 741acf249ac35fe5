"""Training without matplotlib and scikit-learn, and what is said where they are needed."""

import subprocess
import sys
from pathlib import Path

import pytest

import test_net as test_entry
from conftest import ROOT, SMALL_MODEL
from errors import UserError
from reporting.extra import import_extra
from tools import figures

TRAIN_WITHOUT = """
import sys
sys.modules["matplotlib"] = sys.modules["sklearn"] = None  # an import of these fails
import train_net
train_net.main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, mini_settings: list[str]) -> Path:
    """A short run with SDTPS, its picture for TensorBoard included, without the extra packages."""
    folder = tmp_path_factory.mktemp("extra") / "run"
    options = ["--config_file", str(SMALL_MODEL), *mini_settings]
    command = [sys.executable, "-c", TRAIN_WITHOUT, *options, "OUTPUT_DIR", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=300)
    return folder


def test_training_draws_its_picture_without_the_packages(run: Path) -> None:
    assert (run / "last.pth").is_file()
    (events,) = (run / "tensorboard" / "evaluation").glob("events.*")
    assert b"selection/kept_patches" in events.read_bytes()


@pytest.mark.parametrize("package", ["sklearn", "matplotlib"])
def test_a_missing_package_is_named_before_the_work(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    for name in [package, *(name for name in sys.modules if name.startswith(f"{package}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    arguments = ["--config_file", str(run / "config.yml")]
    target, weights = tmp_path / "result", str(run / "last.pth")
    if package == "sklearn":
        main, arguments = test_entry.main, [*arguments, "--report", str(target), "TEST.WEIGHT", weights]
    else:
        main, arguments = figures.main, [*arguments, "--weights", weights, "--output", str(target)]
    message = rf'need {package}, which is not installed: pip install -e "\.\[report\]"'
    with pytest.raises(UserError, match=message):
        import_extra(package)
    with pytest.raises(UserError, match=message):
        main(arguments)
    assert not target.exists()


def test_a_package_that_is_there_and_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own reason is given: a library that it lacks, or another file of a name that it imports."""
    monkeypatch.syspath_prepend(tmp_path)
    for name, line, reason in (
        ("failing_a", "raise ImportError('libx.so: cannot open')", r"libx\.so: cannot open"),
        ("failing_b", "import absent_module", "No module named 'absent_module'"),
    ):
        (tmp_path / f"{name}.py").write_text(line)
        with pytest.raises(UserError, match=rf"need {name}, which cannot be imported \({reason}\): pip"):
            import_extra(name)
