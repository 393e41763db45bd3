"""The suite from outside: what the command line refuses, what a failure says, what survives a crash."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

CONTRACT = """\
kernelpact: 1
contract: mine
why: A test.
pairs: [softmax/*]
scope: {dtypes: [float32], domain: {vocab: [1, 40]}}
numerical:
  - {relation: parity, metric: max_rel, max: 1.0e-4, why: "both are fp32"}
  - {relation: invariance, under: [repeat], metric: bitwise, why: "no state"}
"""

PAIRS = """\
import os
import torch
from kernelpact import KernelPair, register_pair

def train(*, logits):
    return torch.softmax(logits.float(), -1).to(logits.dtype)

def good(*, logits):
    return {"p": train(logits=logits)}

calls = []

def stateful(*, logits):
    calls.append(1)
    return train(logits=logits) * (1 + 1e-6 * (len(calls) % 2))

def mutating(*, logits):
    p = train(logits=logits)
    logits.sub_(1)
    return p

def one_nan(*, logits):
    p = train(logits=logits).clone()
    p[-1, -1] = float("nan")
    return p

def unwritten(*, logits):
    p = torch.empty(logits.shape, dtype=logits.dtype)
    p[:-1] = train(logits=logits)[:-1]
    return p

def faulty(*, logits):
    p = train(logits=logits).clone()
    p[:, 8:] *= 1.5
    return p

KERNELS = {
    "good": good,
    "faulty": faulty,
    "stateful": stateful,
    "mutating": mutating,
    "one_nan": one_nan,
    "unwritten": unwritten,
    "shape": lambda *, logits: train(logits=logits)[:, :-1],
    "dtype": lambda *, logits: train(logits=logits).double(),
    "device": lambda *, logits: train(logits=logits).to("meta"),
    "names": lambda *, logits: {"q": train(logits=logits)},
    "type": lambda *, logits: [1],
    "raises": lambda *, logits: 1 / 0,
    "aborts": lambda *, logits: os.abort(),
}
for name in os.environ["KERNELS"].split():
    register_pair(KernelPair(f"softmax/{name}", "softmax", train, KERNELS[name], dtypes=("float32",), devices=("cpu",)))
"""


@pytest.fixture(scope="module")
def server():
    """Start the process whose children run pytest: each is fresh, and none has to import torch again."""
    command = [sys.executable, str(ROOT / "tests" / "forking.py")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        yield process
        process.stdin.close()


@pytest.fixture
def run(tmp_path, server):
    """Run pytest in a folder with a contract and a pair module; give the finished process.

    fresh: in an interpreter of its own, as a person would start it.
    """
    (tmp_path / "mine.yaml").write_text(CONTRACT)
    (tmp_path / "pairs.py").write_text(PAIRS)

    def run(*arguments, kernels="good", contract="mine.yaml", pairs="pairs.py", fresh=False):
        environment = os.environ | {"PYTHONPATH": str(ROOT), "KERNELS": kernels, "COLUMNS": "200"}
        environment.pop("PYTEST_ADDOPTS", None)
        given = ["--contract-examples=6", *arguments]
        given += [f"--contract={contract}"] if contract else []
        given += [f"--pairs={pairs}"] if pairs else []
        if fresh:
            command = [sys.executable, "-m", "pytest", *given]
            return subprocess.run(
                command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
            )
        streams = {name: str(tmp_path / f".{name}") for name in ("stdout", "stderr")}
        asked = {"arguments": given, "cwd": str(tmp_path), "environment": environment, **streams}
        server.stdin.write(json.dumps(asked) + "\n")
        server.stdin.flush()
        status = int(server.stdout.readline())
        stdout, stderr = (Path(path).read_text() for path in streams.values())
        return subprocess.CompletedProcess(given, status, stdout, stderr)

    return run


def verdicts(path):
    """Give {clause: verdict} by item of an evidence file."""
    items = json.loads(path.read_text())["items"]
    return {(item["id"], one["clause"]): one["verdict"] for item in items for one in item["results"]}


def test_a_failure_is_shown_shrunk_with_a_line_that_replays_it(run, tmp_path):
    """What broke, by how much, the limit and its reason, the minimal input; and the token works in a fresh process."""
    done = run("--contract-report=r.json", kernels="faulty good")
    assert done.returncode == 1
    shown = re.search(
        r"VIOLATED  mine · parity\.max_rel · softmax/faulty · float32 · cpu\n(.*?)\n\n?[_=]",
        done.stdout,
        re.S,
    )
    assert shown, done.stdout
    for pattern in (
        r"observed +0\.5 at p\[0, 8\]", r'allowed +0\.0001 \(mine\.yaml:7, "both are fp32"\)', r"T=1 V=9 ", r"shrunk from",
    ):  # fmt: skip
        assert re.search(pattern, shown[1]), (pattern, shown[1])
    replay = re.search(r"replay +pytest (.*)", shown[1])[1].split()
    again = run(*replay, contract=None, pairs=None, kernels="faulty", fresh=True)
    assert again.returncode == 1
    assert "T=1 V=9" in again.stdout
    assert verdicts(tmp_path / "r.json")["mine-softmax/good-float32-cpu-parity", "parity.max_rel"] == "HOLDS"


def test_evidence_says_what_was_judged_where_and_how(run, tmp_path):
    """The record holds hashes, fingerprints, seed, substrate, counts and the counterexample; equal runs give equal ones."""
    run("--contract-report=a.json", kernels="faulty")
    record = json.loads((tmp_path / "a.json").read_text())
    assert {"schema", "seed", "substrate", "device", "unproven", "verdict"} <= set(record)
    (item,) = [item for item in record["items"] if item["relation"] == "parity"]
    assert len(item["contract_hash"]) == 16
    assert item["fingerprint"]["versions"]["torch"]
    (result,) = item["results"]
    assert result["counterexample"]["recipe"]["vocab"] == 9
    assert result["margin"] < 0
    assert 1 <= result["examples"] <= 6


def test_two_workers_give_the_same_figures_as_one(run, tmp_path):
    """Under xdist the evidence is the same, in one merged file."""
    run("--contract-report=one.json", "-p", "no:cacheprovider", kernels="good faulty")
    (kept,) = (tmp_path / ".kernelpact").iterdir()
    for file in kept.iterdir():
        file.unlink()
    run("--contract-report=two.json", "-n2", kernels="good faulty")
    one, two = (json.loads((tmp_path / name).read_text())["items"] for name in ("one.json", "two.json"))
    for item in one + two:
        item.pop("seconds")
    assert one == two


def test_a_crash_costs_its_own_item_alone(run, tmp_path):
    """A worker that dies is ERROR for the item that it ran; the others are judged; `-k` chooses by id."""
    done = run("-n2", "-k", "parity", "--contract-report=r.json", kernels="aborts good")
    assert done.returncode == 1
    assert verdicts(tmp_path / "r.json") == {
        ("mine-softmax/aborts-float32-cpu-parity", "parity.max_rel"): "ERROR",
        ("mine-softmax/good-float32-cpu-parity", "parity.max_rel"): "HOLDS",
    }
    assert "the process died" in (tmp_path / "r.json").read_text()


def kept(tmp_path):
    """Give the tokens of the counterexamples that runs in this folder have kept."""
    return sorted(file.stem for file in (tmp_path / ".kernelpact" / "counterexamples").glob("*.json"))


def test_what_failed_is_tried_first_while_the_contract_speaks_of_it(run, tmp_path):
    """The next run starts from the kept input, whatever the seed; a domain narrowed past it leaves it out."""
    run(kernels="faulty")
    (token,) = kept(tmp_path)
    again = run("--contract-seed=7", "--contract-report=r.json", kernels="faulty")
    assert again.returncode == 1
    (result,) = [
        one
        for item in json.loads((tmp_path / "r.json").read_text())["items"]
        for one in item["results"]
        if one["counterexample"]
    ]
    assert (result["examples"], result["counterexample"]["token"]) == (1, token)
    (tmp_path / "mine.yaml").write_text(CONTRACT.replace("vocab: [1, 40]", "vocab: [1, 8]"))
    assert run(kernels="faulty").returncode == 0


def test_a_counterexample_is_found_in_the_evidence_of_another_machine(run, tmp_path):
    """`--contract-report` with a replay reads the file, and leaves it as it was."""
    run("--contract-report=r.json", kernels="faulty")
    (token,) = kept(tmp_path)
    (tmp_path / ".kernelpact" / "counterexamples" / f"{token}.json").unlink()
    before = (tmp_path / "r.json").read_bytes()
    done = run(f"--contract-replay={token}", "--contract-report=r.json", kernels="faulty")
    assert done.returncode == 1
    assert "T=1 V=9" in done.stdout
    assert (tmp_path / "r.json").read_bytes() == before
    refused(run("--contract-replay=00000000", "--contract-report=r.json"), "no such counterexample")


def test_a_replay_that_this_run_does_not_reach_is_refused(run, tmp_path):
    """The message says of which contract, pair, dtype and device the counterexample is."""
    run(kernels="faulty")
    (token,) = kept(tmp_path)
    refused(
        run(f"--contract-replay={token}"),
        "it is of mine · softmax/faulty · float32 · cpu · parity, which this run does not reach",
    )


def test_a_mended_kernel_passes_its_replay(run, tmp_path):
    """The token alone does not fail a run: the input is judged anew."""
    run(kernels="faulty")
    (token,) = kept(tmp_path)
    (tmp_path / "pairs.py").write_text(PAIRS.replace("*= 1.5", "*= 1.0"))
    done = run(f"--contract-replay={token}", kernels="faulty")
    assert done.returncode == 0, done.stdout
    assert re.search(r"softmax/faulty +parity\.max_rel .* 1 +HOLDS", done.stdout)


def test_a_random_seed_is_told_and_gives_the_same_run(run, tmp_path):
    """`random` prints the number that was drawn; that number draws the same inputs."""
    first = run("--contract-seed=random", "--contract-report=a.json", kernels="good")
    seed = re.search(r"contract seed: (\d+), 6 examples an item", first.stdout)[1]
    run(f"--contract-seed={seed}", "--contract-report=b.json", kernels="good")
    a, b = (json.loads((tmp_path / name).read_text()) for name in ("a.json", "b.json"))
    assert a["seed"] == int(seed)
    assert [one["results"] for one in a["items"]] == [one["results"] for one in b["items"]]


BROKEN = {
    "shape": "inf returns p with shape",
    "dtype": "inf returns p with dtype torch.float64, expected torch.float32",
    "device": "inf returns p with device meta, expected cpu",
    "names": r"inf returns \['q'\], without the tensors \['p'\]",
    "type": "inf returns list, expected a tensor or a dict",
    "raises": "inf raised ZeroDivisionError: division by zero",
    "mutating": "inf mutates its input logits",
    "one_nan": "observed +inf at p",
    "unwritten": "observed +inf at p",
}


def test_a_kernel_that_breaks_its_interface_is_named(run):
    """Each breach is that item's ERROR or VIOLATED, with what was found and expected; state shows on a second call."""
    done = run(kernels=" ".join([*BROKEN, "stateful", "good"]))
    for name, message in BROKEN.items():
        shown = re.search(
            rf"parity\.max_rel · softmax/{name} · float32 · cpu\n(.*?)\n[_=]", done.stdout, re.S
        )
        assert shown, name
        assert re.search(message, shown[1]), (name, shown[1])
    assert re.search(r"VIOLATED  mine · invariance\(repeat\)\.bitwise · softmax/stateful", done.stdout)
    assert re.search(r"softmax/good +parity\.max_rel .* HOLDS", done.stdout)


def refused(done, message):
    """Hold a run to have stopped at collection, with a message and no traceback."""
    assert done.returncode == 4, done.stdout + done.stderr
    assert re.search(message, done.stderr, re.S), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("softmax/*", "softmx/*", "mine.yaml:4: contract 'mine' names pairs .*no registered pair matches"),
        (
            "metric: max_rel,",
            "metric: max_rel, output: q,",
            r"mine.yaml:7: operator softmax has the outputs p; found 'q'",
        ),
        ("under: [repeat]", "under: [pages]", "mine.yaml:8: .*can be presented under .*found 'pages'"),
        ("max: 1.0e-4", "max: -1", "mine.yaml:7:.*max is -1"),
        ("dtypes: [float32]", "dtypes: [bfloat16]", "none in common"),
    ],
)
def test_contracts_that_fit_nothing_stop_collection(run, tmp_path, old, new, message):
    """An unknown pair, output, transformation or limit names the file and the line."""
    (tmp_path / "mine.yaml").write_text(CONTRACT.replace(old, new))
    refused(run(), message)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import no_such_module\n", "bad.py:1: cannot import pairs: ModuleNotFoundError"),
        ("import sys\nsys.exit(0)\n", "bad.py:2: cannot import pairs: SystemExit: 0"),
        ("x = (\n", "bad.py.*cannot import pairs: SyntaxError"),
        (PAIRS + PAIRS.split("for name")[0][-1:] + "\nregister_pair(KernelPair('softmax/good', 'softmax', train, good))",
         "pair 'softmax/good' is already registered at .*bad.py"),
        (PAIRS.replace('"softmax", train', '"softmux", train'), "no operator 'softmux'; known: .*softmax"),
        (PAIRS + "\nregister_pair(KernelPair('other/good', 'softmax', train, good))", "pair 'other/good' has no contract among: mine"),
        (PAIRS.replace('dtypes=("float32",)', 'dtypes=("float8",)'), "allowed: a non-empty tuple"),
    ],
)  # fmt: skip
def test_pair_modules_at_fault_stop_collection(run, tmp_path, source, message):
    """A module that fails to import, a name twice, an unknown operator, a pair without a contract."""
    (tmp_path / "bad.py").write_text(source)
    (tmp_path / "mine.yaml").write_text(CONTRACT.replace("[softmax/*]", "[softmax/*]"))
    refused(run(pairs="bad.py"), message)


@pytest.mark.parametrize(
    ("arguments", "contract", "message"),
    [
        (["--contract-replay=00000000"], "mine.yaml", "no such counterexample; kept in .*: none"),
        (["--contract-seed=soon"], "mine.yaml", "expected a number or `random`"),
        (["--pair=rope/*"], "mine.yaml", "no registered pair matches; registered: softmax/good"),
        ([], "nothing.yaml", "nothing.yaml:1:1: no such file"),
        ([], "empty", "empty:1:1: no contracts"),
        ([], "both", "contract 'mine' is also in .*a.yaml"),
        (["--contract-report=r.json"], None, "--contract-report needs --contract"),
        (["--contract-replay=00000000"], None, "--contract-replay needs --contract"),
        (["--contract-report=empty"], "mine.yaml", "--contract-report=empty: a folder; expected a file"),
        (
            ["--contract-replay=0", "--contract-report=pairs.py"],
            "mine.yaml",
            "--contract-report=pairs.py: no evidence file",
        ),
        (["--contract-examples=0"], "mine.yaml", "--contract-examples: invalid .*'0'"),
        (["--contract-examples=few"], "mine.yaml", "--contract-examples: invalid .*'few'"),
        (["--contract-device=tpu"], "mine.yaml", "--contract-device: invalid choice: 'tpu'"),
        (["-n2", "--contract-seed=soon"], "mine.yaml", "expected a number or `random`"),
    ],
)
def test_options_that_mean_nothing_are_refused(run, tmp_path, arguments, contract, message):
    """An unknown token, seed, pair or contract, a name twice: exit 4, and what is allowed."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "both").mkdir()
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / "both" / name).write_text(CONTRACT)
    refused(run(*arguments, contract=contract), message)


def test_no_evidence_at_all_does_not_pass(run, tmp_path):
    """A run in which everything is INCONCLUSIVE fails, and says why each is."""
    (tmp_path / "mine.yaml").write_text(
        CONTRACT.replace("dtypes: [float32]", "dtypes: [float32], hardware: [sm_90]")
    )
    done = run()
    assert done.returncode == 1
    assert "INCONCLUSIVE × 2: the contract speaks of sm_90; this machine is cpu" in done.stdout
    assert "no evidence at all" in done.stdout


def test_an_unrelated_run_is_left_alone(tmp_path):
    """Without `--contract` the plugin loads neither torch nor the engine, and warns of nothing."""
    (tmp_path / "test_it.py").write_text(
        "import sys\n\ndef test_it():\n    assert not {'torch', 'hypothesis', 'pydantic'} & set(sys.modules)\n"
    )
    command = [sys.executable, "-m", "pytest", "-W", "error", "-p", "no:hypothesispytest", "-q"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
