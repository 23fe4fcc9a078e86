"""Values of secrets: where they never turn up, and what they decide."""

from __future__ import annotations

import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from moorage import ConfigurationError, LoadError, ModelService, ModelSpec
from moorage.protocols import LaunchOrder, LaunchPlan, PlanRequest
from moorage.testing import FakeBackends, FakeProcesses, fake_parts
from support.servers import misbehave
from support.services import check_log, ports, settle

Opened = Callable[..., ModelService]

VALUE = "sk-0123456789-hush"
LONGER = f"{VALUE}-and-more"
LINES = "-----BEGIN KEY-----\nMIIhushhush\n-----END KEY-----"
HIDDEN = ("hush", "and-more", "MII", "0123456789")
SAYS_ITS_SECRETS = (
    "import os, sys; print('said', os.environ['API_KEY'], os.environ.get('OTHER', ''), flush=True);"
    "print(os.environ.get('PEM', ''), flush=True); os.execv(sys.argv[1], sys.argv[1:])"
)


def talkative(name: str, *flags: str, secrets: dict[str, str], **more: object) -> ModelSpec:
    """Return the spec of a server that writes its secrets to its output."""
    template = tuple("{port}" if part == "0" else part for part in misbehave(0, *flags))
    args = (sys.executable, "-S", "-c", SAYS_ITS_SECRETS, *template)
    return ModelSpec(name=name, backend="command", args=args, secrets=secrets, **more)


def nowhere(*texts: object) -> None:
    """No part of a secret is in any of these."""
    found = [(part, str(text)[:80]) for text in texts for part in HIDDEN if part in str(text)]

    assert found == []


def bytes_of(folder: Path) -> Iterator[str]:
    for path in folder.glob("moorage.*"):
        if path.suffix != ".key":
            yield path.read_bytes().decode("latin-1")


@pytest.fixture(autouse=True)
def everything_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)


def test_values_are_in_no_file_of_the_log_no_status_no_error_and_no_repr(
    opened: Opened, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secrets = {"API_KEY": VALUE, "OTHER": LONGER, "PEM": LINES}
    spec = talkative("a", secrets=secrets)
    failing = talkative("b", "--exit", "3", secrets=secrets)
    service = opened(spec, failing)
    with service.lease("a"):
        pid = service.model("a").pid
    assert psutil.Process(pid).environ()["PEM"] == LINES
    os.kill(pid or 0, signal.SIGKILL)
    settle(lambda: service.model("a").run is None)
    with pytest.raises(LoadError) as told:
        service.start("b")
    tail = service.model("a").log_tail

    assert "said *** ***" in tail
    assert "said *** ***" in told.value.log_tail
    nowhere(*bytes_of(folder))
    nowhere(spec, repr(service.status()), service.status().to_data(), tail)
    nowhere(told.value, repr(told.value), "".join(traceback.format_exception(told.value)))
    nowhere(*(repr(entry) for entry in service.events()), caplog.text)
    service.close()
    nowhere(*bytes_of(folder))


def test_a_secret_that_is_cut_at_the_end_of_a_long_line_leaves_no_beginning(
    opened: Opened, folder: Path
) -> None:
    long_lines = (
        "import os; key = os.environ['API_KEY'];[print('x' * (990 + n) + key) for n in range(10)]"
    )
    spec = ModelSpec(
        name="a",
        backend="command",
        args=(sys.executable, "-S", "-c", long_lines, "{port}"),
        secrets={"API_KEY": f"hush{VALUE}"},
    )
    service = opened(spec)
    with pytest.raises(LoadError) as told:
        service.start("a")

    assert len(told.value.log_tail) == 10
    nowhere(*told.value.log_tail, *bytes_of(folder))


def test_an_order_to_launch_does_not_show_them() -> None:
    order = LaunchOrder(
        model="a", run=1, token="t", argv=("x",), log_file=Path("l"), env={"API_KEY": VALUE}
    )

    nowhere(repr(order))


@pytest.mark.parametrize(
    "field",
    [{"args": (f"--key={VALUE}",)}, {"settings": {"api-key": VALUE}}, {"env": {"K": VALUE}}],
)
def test_a_value_repeated_where_it_would_be_logged_is_refused_without_showing_it(
    field: dict[str, object],
) -> None:
    with pytest.raises(ConfigurationError, match="API_KEY") as told:
        ModelSpec(name="a", backend="command", secrets={"API_KEY": VALUE}, **field)

    nowhere(told.value)


class Indiscreet(FakeBackends):
    """A backend that hands a secret to its server in the command line."""

    def plan(self, request: PlanRequest) -> LaunchPlan:
        plan = super().plan(request)
        return replace(plan, argv=(*plan.argv, f"--api-key={request.spec.secrets['API_KEY']}"))


def test_a_command_line_is_logged_without_the_secrets_that_a_backend_put_there(
    opened: Opened, folder: Path
) -> None:
    spec = ModelSpec(name="a", backend="command", args=("{port}",), secrets={"API_KEY": VALUE})
    processes = FakeProcesses()
    service = opened(spec, parts=fake_parts(processes=processes, backends=Indiscreet()))
    service.start("a")
    launched = processes.server("a").order.argv
    logged = [e.event.argv for e in service.events() if e.event.kind == "run.launching"]

    assert launched[-1] == f"--api-key={VALUE}"
    assert [argv[-1] for argv in logged] == ["--api-key=***"]
    nowhere(*bytes_of(folder))


def test_a_changed_secret_reloads_the_run_and_the_same_one_does_not(opened: Opened) -> None:
    service = opened(talkative("a", secrets={"API_KEY": VALUE}))
    first = service.start("a").run
    service.define(talkative("a", secrets={"API_KEY": VALUE}))
    with service.lease("a") as lease:
        assert lease.run == first
    service.define(talkative("a", secrets={"API_KEY": LONGER}))
    with service.lease("a") as lease:
        pid = service.model("a").pid

    assert lease.run != first
    assert psutil.Process(pid).environ()["API_KEY"] == LONGER


@pytest.fixture
def kept(opened: Opened, folder: Path) -> Iterator[ModelService]:
    """A service that took over a run with secrets, which the log cannot give back."""
    pool = ports()
    first = opened(talkative("a", secrets={"API_KEY": VALUE}), ports=pool)
    first.start("a")
    first.close("keep")
    with ModelService.open(folder, ports=pool) as service:
        yield service
    check_log(folder)


def test_an_adopted_run_is_served_and_a_new_launch_wants_the_secrets_again(
    kept: ModelService,
) -> None:
    with kept.lease("a") as lease:
        adopted = lease.run
    kept.stop("a")
    with pytest.raises(LoadError, match="define it again") as told:
        kept.start("a")
    assert told.value.stage == "secrets"
    assert kept.model("a").attempts == 0
    kept.define(talkative("a", secrets={"API_KEY": VALUE}))
    with kept.lease("a") as lease:
        pid = kept.model("a").pid

    assert lease.run > adopted
    assert psutil.Process(pid).environ()["API_KEY"] == VALUE


def test_defining_it_again_leaves_the_adopted_run_alone(kept: ModelService) -> None:
    with kept.lease("a") as lease:
        kept.define(talkative("a", secrets={"API_KEY": VALUE}))
        with kept.lease("a") as again:
            assert again.run == lease.run


def test_the_output_of_an_adopted_run_is_withheld_as_nobody_knows_what_to_mask(
    kept: ModelService, folder: Path
) -> None:
    with kept.lease("a"):
        pid = kept.model("a").pid
    os.kill(pid or 0, signal.SIGKILL)
    settle(lambda: kept.model("a").run is None)
    (line,) = kept.model("a").log_tail

    assert "withheld" in line
    nowhere(*bytes_of(folder), kept.status())
