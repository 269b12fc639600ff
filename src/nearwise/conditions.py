"""Versions, hardware and command of a run, and checks of installed packages."""

import math
import os
import platform
import shlex
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, entry_points, version
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

from nearwise import __version__

PROGRAM = "nearwise"
PACKAGES = ("numpy", "torch", "scikit-learn", "pandas", "lightgbm", "catboost", "faiss-cpu")
_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def require_extra(what: str, extra: str, *packages: str, of: str = PROGRAM) -> None:
    """Raise ImportError if a package (by import name) of an extra is not installed.

    `what` is the feature that needs them, for the message.
    """
    for package in packages:
        if find_spec(package) is None:
            message = f'{what} needs the extra "{extra}": pip install {of}[{extra}]'
            raise ImportError(message, name=package)


def load_plugin(what: str, group: str, name: str) -> Any:
    """Load the object that an installed package registers under a name.

    Raises ImportError if there is none.

    Parameters
    ----------
    what : str
        Feature that needs it, for the message.
    group, name : str
        Group and name of the entry point.
    """
    for plugin in entry_points(group=group, name=name):
        return plugin.load()
    raise ImportError(
        f"{what} needs a package with the entry point {name!r} of the group {group!r}. "
        "nearwise-lab has one: pip install nearwise-lab[figures]"
    )


def versions() -> dict[str, str]:
    """Return versions of nearwise, Python and the installed packages.

    In a checkout also the "commit", with a "+" if the sources have changed since.
    """
    found = {"nearwise": __version__, "python": platform.python_version()}
    found |= {} if (commit := _commit()) is None else {"commit": commit}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


@cache
def _commit() -> str | None:
    package = Path(__file__).resolve().parent
    if not (package.parents[1] / ".git").exists():
        return None

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(package), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ":/src", ":/lab/src")
        return git("rev-parse", "--short=10", "HEAD") + "+" * bool(changed)
    except (OSError, subprocess.CalledProcessError):  # no git, or a checkout of another user
        return None


def hardware() -> dict[str, Any]:
    """Return processor, cores, memory in GiB, system, and the GPU if there is one."""
    import torch

    memory = None
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        memory = round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)
    facts: dict[str, Any] = {
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
        "threads": available_threads(),
        "memory_gib": memory,
        "system": f"{platform.system()} {platform.machine()}",
    }
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
    return facts


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def command_line() -> str:
    """Return the command that runs this process, without the folder of its program."""
    program = sys.argv[0] if sys.argv and sys.argv[0] else "python"
    return shlex.join([Path(program).name, *sys.argv[1:]])


def available_threads() -> int:
    """Return the number of processors available to this process, at most OMP_NUM_THREADS.

    Respects CPU affinity and the quota of control groups: 2 in a container with ``--cpus 1.5``, on
    any machine.
    """
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:  # macOS and Windows do not offer it
        cores = os.cpu_count() or 1
    limits = [cores if _cpu_quota() >= cores else math.ceil(_cpu_quota())]
    given = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]  # the rest is for nested levels
    if given.isdigit() and int(given) > 0:
        limits.append(int(given))
    return max(1, min(limits))


@cache
def _cpu_quota() -> float:
    """Return the CPU quota of this process's control groups in processors; else infinity."""
    found = [math.inf]
    for line in _lines_of(_PROC / "self" / "cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        for root in (_CGROUPS / "cpu", _CGROUPS / "cpu,cpuacct") if controllers else (_CGROUPS,):
            here = PurePosixPath(path)
            for folder in (root / str(at).lstrip("/") for at in (here, *here.parents)):
                found += _quota_of(folder)
    return min(found)


def _quota_of(folder: Path) -> list[float]:
    """Read the quota of one control group, version 2 or 1."""
    words = " ".join(_lines_of(folder / "cpu.max")).split()
    if not words:
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        words = [line for name in names for line in _lines_of(folder / name)]
    if len(words) != 2 or words[0] in ("max", "-1"):
        return []
    return [int(words[0]) / int(words[1])]


def _lines_of(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:  # exists on Linux only, in one of the two versions
        return []
