"""Makes every edit in a copy of the tree, and runs there what should find it."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mutation.edit import Edit, RottenEditError, edits
from support import leaks

ROOT = Path(__file__).parents[2]
SIMULATION = Path("tests/simulation/__main__.py")
SEEDS = 100
LIMIT_S = 600.0
"""For one run of tests or seeds; what takes longer has found nothing."""
TEST_S = 60
"""For one test: a fault may well be a hang, which counts as found."""
_LEFT_OUT = (".*", "dist", "build", "__pycache__", "moorage-demo")

_FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", re.MULTILINE)
_LAST = re.compile(r"^(tests/\S+::.*?)(?: (?:PASSED|FAILED|ERROR|SKIPPED|\+\+).*)?$", re.MULTILINE)
_SEED = re.compile(r"^seed (\d+): ", re.MULTILINE)


class CannotCheckError(Exception):
    """The check itself does not work: nothing was shown."""


@dataclass(frozen=True, slots=True)
class Found:
    """What found an edit, None when nothing did, and how long that took."""

    by: str | None
    seconds: float

    def __str__(self) -> str:
        return f"{self.by or 'NOT FOUND'} ({self.seconds:.1f} s)"


@dataclass(frozen=True, slots=True)
class Result:
    """What tests and, where asked, seeds made of an edit."""

    edit: Edit
    tests: Found
    seeds: Found | None

    @property
    def survived(self) -> bool:
        """Tell whether neither found it."""
        return self.tests.by is None and (self.seeds is None or self.seeds.by is None)


class Tree:
    """A copy of the tree in which edits are made."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        self._temp = folder / "tmp"
        self._temp.mkdir()
        shutil.copytree(ROOT, self.root, ignore=shutil.ignore_patterns(*_LEFT_OUT), symlinks=True)
        self._refuse_another_package()

    def _refuse_another_package(self) -> None:
        """Else edits would be made here, and another copy be tested."""
        where = "import moorage; print(moorage.__file__)"
        _, said = self._run([sys.executable, "-c", where])
        if not said.startswith(f"{self.root}{os.sep}"):
            raise CannotCheckError(f"the package is imported from {said.strip()}")

    def pytest(self, tests: Sequence[str]) -> Found:
        """Run tests in order until one fails."""
        if not tests:
            return Found(None, 0.0)
        options = ["-x", "-v", "--tb=no", f"--timeout={TEST_S}"]
        off = ["-p", "no:cacheprovider", "-p", "no:randomly"]
        began = time.monotonic()
        status, said = self._run([sys.executable, "-m", "pytest", *options, *off, *tests])
        seconds = time.monotonic() - began
        if status == 0:
            return Found(None, seconds)
        failed = _FAILED.findall(said)
        if status == 1 and failed:
            return Found(failed[0], seconds)
        hung = _LAST.findall(said)
        if status == 1 and hung:
            return Found(f"{hung[-1]} (it hangs)", seconds)
        raise CannotCheckError(f"pytest ended with status {status}:\n{said[-4000:]}")

    def simulate(self, seeds: int) -> Found:
        """Run so many seeds of the simulation until one fails."""
        command = [sys.executable, "-m", "tests.simulation", "--seeds", str(seeds)]
        began = time.monotonic()
        status, said = self._run(command, until=_SEED)
        seconds = time.monotonic() - began
        found = _SEED.search(said)
        if found is not None:
            return Found(f"seed {found[1]}", seconds)
        if status in (0, None):
            return Found(None, seconds)
        raise CannotCheckError(f"no seed was told, status {status}:\n{said[-4000:]}")

    def _run(
        self, command: Sequence[str], until: re.Pattern[str] | None = None
    ) -> tuple[int | None, str]:
        """Run to its end, the limit, or a line; return the status, None for a hang, and the output.

        A run that is ended in the middle leaves its servers behind: they are ended here.
        """
        session = uuid.uuid4().hex
        environment = os.environ | {
            "PYTHONPATH": str(self.root / "service"),
            "PYTHONDONTWRITEBYTECODE": "1",  # two edits in one second have the same stamp
            "TMPDIR": str(self._temp),
            leaks.SESSION_VARIABLE: session,
        }
        watch = leaks.LeakCheck(temp=self._temp, session=session)
        before = watch.look()
        with subprocess.Popen(
            command,
            cwd=self.root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as running:
            status, said = _hear(running, until)
        leaks.clear(tuple(leak for leak in watch.look() - before if leak.process or leak.path))
        return status, said


def _hear(running: subprocess.Popen[str], until: re.Pattern[str] | None) -> tuple[int | None, str]:
    """Read what a command says, up to a line; it has ended then, or is killed with its group."""
    hangs = threading.Event()

    def end() -> None:
        hangs.set()
        os.killpg(running.pid, signal.SIGKILL)

    limit = threading.Timer(LIMIT_S, end)
    limit.start()
    lines: list[str] = []
    for line in running.stdout or ():
        lines.append(line)
        if until is not None and until.match(line):
            os.killpg(running.pid, signal.SIGKILL)
            break
    limit.cancel()
    status = running.wait()
    return None if hangs.is_set() else status, "".join(lines)


def check(chosen: Sequence[Edit], *, seeds: int, baseline: bool) -> Iterator[Result]:
    """Yield what was found of each edit, once the tree without any was found sound."""
    with tempfile.TemporaryDirectory(prefix="moorage-mutation-") as folder:
        tree = Tree(Path(folder))
        seeds = seeds if (tree.root / SIMULATION).exists() else 0
        if baseline:
            _refuse_unsound(tree, chosen, seeds)
        for edit in chosen:
            with edit.made(tree.root):
                tests = tree.pytest(edit.tests)
                simulated = tree.simulate(seeds) if seeds and edit.simulated else None
            yield Result(edit, tests, simulated)


def _refuse_unsound(tree: Tree, chosen: Sequence[Edit], seeds: int) -> None:
    """What fails without an edit shows nothing when it fails with one."""
    tests = tree.pytest(sorted({test for edit in chosen for test in edit.tests}))
    if tests.by is not None:
        raise CannotCheckError(f"without any edit, {tests} fails")
    if seeds and (found := tree.simulate(seeds)).by is not None:
        raise CannotCheckError(f"without any edit, {found} fails")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table of edits and what found them; 1 when one survived, 2 when it cannot run."""
    parser = _parser()
    options = parser.parse_args(arguments)
    chosen = [edit for edit in edits() if all(word in edit.name for word in options.words)]
    if not chosen:
        parser.error(f"no edit has all of {', '.join(options.words)} in its name")
    print("| Wrong edit | Found by test | Found by seed |\n| --- | --- | --- |")
    survived: list[str] = []
    try:
        for result in check(chosen, seeds=options.seeds, baseline=not options.no_baseline):
            seed = result.seeds if result.seeds is not None else ""
            print(f"| {result.edit.name} | {result.tests} | {seed} |", flush=True)
            if result.survived:
                survived.append(result.edit.name)
    except (CannotCheckError, RottenEditError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if survived:
        sys.stderr.write(f"{len(survived)} of {len(chosen)} survived: {', '.join(survived)}\n")
        return 1
    print(f"\nAll {len(chosen)} were found.")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("words", nargs="*", help="only edits with these words in their names")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="of the simulation, for each edit")
    parser.add_argument(
        "--no-baseline", action="store_true", help="do not first see that all pass without an edit"
    )
    return parser
