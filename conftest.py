"""What holds for every test: offline, seeded, one thread (data are tiny)."""

import gc
import importlib
import os
import random
import re
import shutil
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

# Set before torch, numpy or faiss load their thread pools.
for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
os.environ.setdefault("MPLBACKEND", "Agg")

import numpy as np  # noqa: E402
import pytest  # noqa: E402

SEED = 0
BENCHMARKS = Path(__file__).parent / "benchmarks"
LOOPBACK = ("localhost", "::1", "127.")


def _is_local(host: object) -> bool:
    name = host.decode() if isinstance(host, bytes) else host
    return name in (None, "") or (isinstance(name, str) and name.startswith(LOOPBACK))


@pytest.hookimpl(optionalhook=True)  # also where xdist is switched off
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object | None:
    """Give a process whole files, so that what they fit is fitted once, but pages one by one.

    The pages of documentation share nothing and take a fifth of the time: as one file, the last to
    start, they kept one process busy for minutes after the others were done.
    """
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class PagesApart(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return nodeid if "::test_code_blocks_run[" in nodeid else super()._split_scope(nodeid)

    return PagesApart(config, log)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Take what is loaded by now out of garbage collection."""
    _set_aside()


@pytest.fixture(autouse=True, scope="module")
def _settled() -> Iterator[None]:
    """Take what a module leaves behind out of garbage collection."""
    yield
    _set_aside()


def _set_aside() -> None:
    """Free what is garbage, and never again walk through what is not.

    Modules, tests and caches of compilers are millions of objects that stay to the end. With them
    a full collection takes seconds, and code under test calls ``gc.collect()``.
    """
    gc.collect()
    gc.freeze()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Let the interpreter clear up as usual when it ends."""
    gc.unfreeze()


@pytest.fixture(autouse=True, scope="session")
def _offline() -> Iterator[None]:
    """Refuse every connection and name look-up that leaves this machine."""
    patch = pytest.MonkeyPatch()

    def guarded(original, host_of):
        def call(*args, **kwargs):
            host = host_of(*args)
            if not _is_local(host):
                raise OSError(f"tests run offline: refused to reach {host!r}")
            return original(*args, **kwargs)

        return call

    def peer(sock, address, *_):
        return None if sock.family == getattr(socket, "AF_UNIX", None) else address[0]

    patch.setattr(socket.socket, "connect", guarded(socket.socket.connect, peer))
    patch.setattr(socket.socket, "connect_ex", guarded(socket.socket.connect_ex, peer))
    patch.setattr(socket, "getaddrinfo", guarded(socket.getaddrinfo, lambda host, *_: host))
    yield
    patch.undo()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Start every test from the same random state, whatever ran before it."""
    random.seed(SEED)
    np.random.seed(SEED)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(SEED)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let what runs on accelerators be tested on one, and absent packages be a failure."""
    parser.addoption("--device", default="cpu", help="of tests that take a device: cpu, cuda, mps")
    parser.addoption(
        "--all-extras", action="store_true", help="fail where a package of an extra is not there"
    )


class _Extras:
    """Skip what needs a package of an extra that is not installed, and say so at the end.

    A plugin of its own, as hooks of this file do not see a folder whose own conftest.py fails.
    """

    reason = "needs the package "
    named = re.compile(reason + r"(\S+)|could not import '([^'.]+)")

    def __init__(self, config: pytest.Config) -> None:
        self.strict = config.getoption("all_extras")
        self.halves: dict[str, str] = {}  # test modules that such an import broke off: its package

    def _judge(self, report: Any, call: Any) -> None:
        error = call.excinfo.value if call is not None and call.excinfo else None
        while report.failed and error is not None and not self.strict:
            name = getattr(error, "name", None) or ""
            package = self.halves.get(name) or name.partition(".")[0]
            if isinstance(error, ImportError) and package and find_spec(package) is None:
                report.outcome = "skipped"
                report.longrepr = (report.nodeid, None, self.reason + package)
                self.halves[report.nodeid.removesuffix(".py").replace("/", ".")] = package
            error = error.__cause__ or error.__context__

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self) -> Iterator[None]:
        report: Any = yield
        self._judge(report, getattr(report, "call", None))
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Iterator[None]:
        report: Any = yield
        self._judge(report, call)
        return report

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        skipped = terminalreporter.stats.get("skipped", ())
        named = [self.named.search(str(report.longrepr[2])) for report in skipped]
        counts = Counter(match[1] or match[2] for match in named if match)
        packages = [f"{package} ({n})" for package, n in sorted(counts.items())]
        if packages and not self.strict:
            terminalreporter.write_line(
                "Files and tests skipped for want of a package: "
                f"{', '.join(packages)}. ./run test-all installs them and runs everything."
            )


def pytest_configure(config: pytest.Config) -> None:
    """Take note of what is not installed."""
    config.pluginmanager.register(_Extras(config))


@pytest.fixture
def device(request: pytest.FixtureRequest) -> str:
    """Give the device of --device; skip where it is not there."""
    import torch

    name: str = request.config.getoption("--device")
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:  # torch raises either, by device
        pytest.skip(f"the device {name} is not there: {str(error).splitlines()[0]}")
    return name


@pytest.fixture
def rng() -> np.random.Generator:
    """Give a numpy generator with the suite's seed."""
    return np.random.default_rng(SEED)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, for slow tests that use pages as a person would."""
    api = pytest.importorskip("playwright.sync_api", reason='needs the extra "browser"')
    where = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if where is None:
        pytest.skip("no Chromium is installed")
    with api.sync_playwright() as started:
        found = started.chromium.launch(executable_path=where, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def load_benchmark(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Import a script of benchmarks/ by name; it and the scripts that it imports are unloaded."""
    if not BENCHMARKS.is_dir():
        pytest.skip("benchmarks/ is in the repository alone")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or "").parent == BENCHMARKS:
            del sys.modules[name]
