"""The pytest plugin. It does nothing until `--contract` is given, or the suite's own item is collected.

Only options are defined at import, so that an unrelated pytest run pays next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kernelpact.plugin.session import ContractSession

_KEY = pytest.StashKey["ContractSession"]()
_ATTRIBUTE = "_kernelpact"  # on a test report, where xdist carries it to the controller


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the `--contract` family of options."""
    group = parser.getgroup("kernelpact", "kernel contracts")
    add = group.addoption
    add("--contract", action="append", default=[], metavar="PATH|GLOB|NAME",
        help="judge these contracts (repeatable; a directory means every contract in it)")  # fmt: skip
    add("--pairs", action="append", default=[], metavar="MODULE|FILE",
        help="load kernel pairs from here (repeatable; default: the suite's kernel_pairs/)")  # fmt: skip
    add(
        "--pair",
        action="append",
        default=[],
        metavar="GLOB",
        help="judge only pairs of this name (repeatable)",
    )
    add("--contract-device", choices=["auto", "cpu", "cuda"], default="auto",
        help="where kernels run (default: cuda if there is one)")  # fmt: skip
    add("--contract-examples", type=_positive, metavar="N", default=None,
        help="inputs generated for each item (default: 20)")  # fmt: skip
    add("--contract-seed", default="0", metavar="N|random",
        help="the same seed gives the same inputs; `random` explores, and prints its seed (default: 0)")  # fmt: skip
    add("--contract-report", metavar="FILE.json", type=Path, help="write the evidence here")
    add("--contract-replay", metavar="TOKEN", help="judge one kept counterexample alone")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(f"expected at least 1, found {text}")
    return value


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Lay out the cases when contracts are asked for, and collect the suite alone unless files are named."""
    config.addinivalue_line("markers", "contract: an item of the contract suite")
    if not config.getoption("contract"):
        if used := [name for name in ("--contract-replay", "--contract-report") if _given(config, name)]:
            raise pytest.UsageError(f"{', '.join(used)} needs --contract=PATH|GLOB|NAME")
        return
    session = _session(config)
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args = [str(session.suite_file)]


def _given(config: pytest.Config, option: str) -> bool:
    return config.getoption(option) is not None


def _session(config: pytest.Config) -> ContractSession:
    """Give the run's contract session, made on first use."""
    if _KEY not in config.stash:
        from kernelpact.plugin.session import ContractSession, InputError  # late: they import torch

        try:
            config.stash[_KEY] = ContractSession(config)
        except InputError as error:
            raise pytest.UsageError(str(error)) from error
    return config.stash[_KEY]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one item of every case."""
    if "contract_case" in metafunc.fixturenames:
        cases = _session(metafunc.config).cases
        marked = [pytest.param(case, id=case.id, marks=pytest.mark.contract) for case in cases]
        metafunc.parametrize("contract_case", marked)


@pytest.fixture
def contract_judge(request: pytest.FixtureRequest) -> Callable[[Any], None]:
    """Judge a case: fails where it is VIOLATED or ERROR, skips where it is INCONCLUSIVE."""
    session = _session(request.config)

    def judge(case: Any) -> None:
        item = session.judge(case)
        setattr(request.node, _ATTRIBUTE, session.encode(item))
        if failures := session.failures(item):
            pytest.fail(failures, pytrace=False)
        if reason := session.doubt(item):
            pytest.skip(reason)

    return judge


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Attach an item's evidence to its report, which travels from an xdist worker to the controller."""
    report = yield
    if report.when == "call" and hasattr(item, _ATTRIBUTE):
        setattr(report, _ATTRIBUTE, getattr(item, _ATTRIBUTE))
    return report


def pytest_report_teststatus(report: Any) -> tuple[str, str, str] | None:
    """Show INCONCLUSIVE as itself, not as a skip."""
    if report.when == "call" and report.skipped and hasattr(report, _ATTRIBUTE):
        return "inconclusive", "I", "INCONCLUSIVE"
    return None


class _Collector:
    """Runs in the process that sees all reports: merges the evidence of every worker."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Keep an item's evidence as soon as it is known, and note a worker that died on an item."""
        if evidence := getattr(report, _ATTRIBUTE, None):
            _session(self.config).collect(evidence)
        elif report.failed and "[" in report.nodeid:
            _session(self.config).crashed(
                report.nodeid.split("[", 1)[1].removesuffix("]"), str(report.longrepr)
            )

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the table of clauses and what was not reached."""
        _session(self.config).summarise(terminalreporter)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the report; a run in which nothing at all could be judged does not pass."""
        contracts = _session(self.config)
        contracts.finish()
        if contracts.collected and not contracts.judged and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_sessionstart(session: pytest.Session) -> None:
    """Collect evidence where reports arrive: in the only process, or in xdist's controller."""
    config = session.config
    if config.getoption("contract") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Collector(config), "kernelpact-collector")


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what is judged, where, and from which seed."""
    return _session(config).header() if config.getoption("contract") else []
