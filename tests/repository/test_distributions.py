"""What is built: a wheel without the lab, and sources whose tests run beside the wheel."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
MOST_BYTES = 1_500_000


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """Folder with a wheel and the sources of the library."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory) -> Path:
    """Folder with the wheel alone; what it depends on is found behind it."""
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target"]
    subprocess.run([*pip, folder, next(built.glob("*.whl"))], check=True, capture_output=True)
    return folder


def test_the_wheel_holds_the_library_alone_and_stays_small(built):
    wheel = next(built.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
        described = Parser().parsestr(archive.read(metadata).decode())
    assert {re.sub(r"-.*", "", name.split("/")[0]) for name in names} == {"nearwise"}
    assert not [name for name in names if "nearwise/lab" in name]
    assert "nearwise/nn/weights/README.md" in names
    assert wheel.stat().st_size < MOST_BYTES
    needed = [one for one in described.get_all("Requires-Dist") if "extra ==" not in one]
    assert len(needed) == 9
    shown = described.get_payload()  # README, on a page without the repository's files
    links = re.findall(r"\]\(([^)]+)\)|src=\"([^\"]+)\"", shown)
    assert len(links) > 20 and all("".join(one).startswith(("https://", "#")) for one in links)


def test_what_is_installed_fits_predicts_and_opens_a_model(installed, tmp_path):
    code = (
        "import sys, nearwise\n"
        "from sklearn.datasets import load_iris\n"
        f"assert nearwise.__file__.startswith({str(installed)!r})\n"
        "X, y = load_iris(return_X_y=True, as_frame=True)\n"
        "model = nearwise.AttnKNNClassifier(preset='instant', random_state=0).fit(X[::2], y[::2])\n"
        "model.save('iris.model')\n"
        "assert nearwise.AttnKNNClassifier.load('iris.model').score(X[1::2], y[1::2]) > 0.9\n"
        "assert 'nearwise_lab' not in sys.modules\n"
    )
    command = [sys.executable, "-W", "error::UserWarning", "-c", code]
    environment = os.environ | {"PYTHONPATH": str(installed)}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)


def test_the_tests_in_the_sources_run_beside_what_is_installed(built, installed, tmp_path):
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path, filter="data")
    (sources,) = tmp_path.iterdir()
    assert {"benchmarks", "examples", "lab"}.isdisjoint(path.name for path in sources.iterdir())
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-n",
            "2",
            "--dist=loadfile",
            "-p",
            "no:cacheprovider",
        ],
        cwd=sources,
        env=os.environ | {"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-5_000:]
