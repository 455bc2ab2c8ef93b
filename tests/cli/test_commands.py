"""run, compare, resume, report: from one command to a report, and what happens when something is wrong."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from undrift import cli
from undrift.cli import _said
from undrift.core.errors import Deserted
from undrift.core.hyper import METHODS
from undrift.experiments.runs.files import lock, write_json
from undrift.models import MODELS

SMALL = ["--rounds", "12", "--steps", "2", "--batch", "5", "--dirichlet", "0.1"]


def metrics(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("metrics.jsonl"))}


def in_this_process(*words: str) -> None:
    """A command that succeeds, for fixtures of a module."""
    before = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as end:
        patch.setattr(sys, "argv", ["undrift", *words])
        cli.main()
    signal.signal(signal.SIGTERM, before)
    assert not end.value.code


@pytest.mark.slow
def test_compare_ends_with_a_table_and_a_report(undrift, tmp_path: Path) -> None:
    said = undrift("compare", "fedavg", "scaffold-m:beta=0.1,lr=0.2", *SMALL, "--seeds", 2, "--jobs", 1)
    assert said.code == 0
    assert "scaffold-m beta=0.1 lr=0.2" in said.out and "report: runs/compare-digits/report.html" in said.out
    made = tmp_path / "runs" / "compare-digits"
    assert (made / "report.html").stat().st_size > 10_000 and (made / "summary.csv").exists()
    assert len(metrics(made)) == 4
    assert "done, 12 rounds" in said.err  # plain lines where there is no terminal
    # the resolved experiment of any run, run again, gives the same bytes
    one = made / "scaffold-m beta=0.1 lr=0.2" / "seed-1"
    again = undrift("run", one / "experiment.toml", "--out", "again", "-q")
    assert (again.code, again.out, again.err) == (0, "", "")
    assert (tmp_path / "again/metrics.jsonl").read_bytes() == (one / "metrics.jsonl").read_bytes()
    manifest = json.loads((one / "manifest.json").read_text())
    assert manifest["versions"]["torch"] and manifest["seeds"] == [1]
    # another comparison gets a place of its own
    assert "runs/compare-digits-2" in undrift("compare", "fedavg", *SMALL).out
    report = undrift("report", "runs/compare-digits", "again", "--target", 0.2, "--out", "both")
    assert report.code == 0 and (tmp_path / "both" / "report.html").exists()


@pytest.mark.slow
def test_two_processes_give_the_bytes_of_one(undrift, tmp_path: Path) -> None:
    words = ["compare", "fedavg", "fedhbm", *SMALL, "--set", "threads=1", "-q"]
    assert undrift(*words, "--jobs", 1, "--out", "one").code == 0
    assert undrift(*words, "--jobs", 2, "--out", "two").code == 0
    assert metrics(tmp_path / "one") == metrics(tmp_path / "two")


def test_run_with_settings_and_resume_for_longer(undrift, tmp_path: Path) -> None:
    text = 'rounds = 6\n[algorithm]\nname = "scaffold"\n[local]\nsteps = 2\nbatch = 5\n'
    (tmp_path / "e.toml").write_text(text)
    assert undrift("run", "e.toml", "--set", "rounds=4", "--out", "short", "-q").code == 0
    assert "is finished" in undrift("resume", "short").out
    said = undrift("run", "e.toml", "--out", "loud")  # the engine is part of what is said of every run
    assert "engine: clients in chunks of 10, batched" in said.err and said.code == 0
    assert undrift("resume", "short", "--rounds", 6, "-q").code == 0
    assert undrift("run", "e.toml", "--out", "long", "-q").code == 0
    assert metrics(tmp_path / "short") == metrics(tmp_path / "long")
    assert "planned for 6 rounds (6 are done)" in undrift("resume", "short", "--rounds", 5).err


def test_dry_shows_and_starts_nothing(undrift, tmp_path: Path) -> None:
    said = undrift("compare", "fedavg", "scaffold", *SMALL, "--dry")
    assert said.code == 0 and not (tmp_path / "runs").exists()
    assert "[algorithms.scaffold]" in said.out and "4,810 parameters" in said.out
    assert "fedavg: 385 kB" in said.out and "scaffold: 770 kB" in said.out and "nothing was started" in said.out


ERRORS = {
    "unknown method": (["compare", "fedavgg"], 2, "did you mean 'fedavg'?"),
    "no method": (["compare"], 2, "Missing argument"),
    "unknown option": (["compare", "fedavg", "--rouns", "3"], 2, "--rouns"),
    "not a number": (["compare", "fedavg", "--rounds", "x"], 2, "--rounds"),
    "two partitions": (["compare", "fedavg", "--iid", "--natural"], 2, "different partitions"),
    "per round": (["compare", "fedavg", "--clients", "5", "--per-round", "6"], 2, "per_round = 6 is more than there are clients, 5"),
    "everyone": (["compare", "fedavg", "--everyone", "--per-round", "6"], 2, "contradict"),
    "natural digits": (["compare", "fedavg", "--natural"], 2, "these data name no clients"),
    "natural number": (["compare", "fedavg", "--natural", "--clients", "3"], 2, "leave out --clients"),
    "parameter": (["compare", "fedavg:beta=1"], 2, "unknown parameter of fedavg"),
    "parameter form": (["compare", "scaffold-m:beta"], 2, "name:beta=0.1"),
    "data": (["compare", "fedavg", "--data", "mnits"], 2, "did you mean 'mnist'?"),
    "missing data": (["compare", "fedavg", "--data", "gldv2"], 2, "is not on this machine"),
    "setting": (["compare", "fedavg", "--set", "x"], 2, "key=value"),
    "method's demands": (["compare", "vrl-sgd"], 2, "defined for full participation"),
    "no file": (["run", "nowhere.toml"], 2, "No such file"),
    "not a run": (["resume", "."], 2, "is not a run directory"),
    "no run": (["report", "nowhere"], 2, "nowhere"),
    "use": (["compare", "fedavg", "--use", "nowhere.py"], 2, "is not a file"),
    "logger": (["compare", "fedavg", "--log", "wand"], 2, "did you mean 'wandb'?"),
    "nobody": (["compare", "fedavg", "--per-round", "0"], 2, "participation.per_round"),
    "no clients": (["compare", "fedavg", "--clients", "0"], 2, "clients.number"),
    "twice": (["compare", "fedavg", "fedavg"], 2, "fedavg is there twice"),
    "target": (["compare", "fedavg", "--target", "nan"], 2, "target"),
    "impossible model": (["compare", "fedavg", "--set", "model.hidden=-3"], 2, "model mlp: hidden is a list of widths, such as [64], got -3"),
    "buffer": (["compare", "fedbuff", "--async", "--clients", "4", "--per-round", "5"], 2, "more than there are clients"),
}  # fmt: skip


@pytest.mark.parametrize("case", ERRORS)
def test_an_error_is_a_line_on_stderr_and_nothing_is_made(
    case: str, undrift, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNDRIFT_OFFLINE", "1")
    words, code, message = ERRORS[case]
    said = undrift(*words)
    assert (said.code, said.out) == (code, "")
    assert message in said.err and said.err.startswith("undrift: ") and len(said.err.splitlines()) <= 2
    assert "Traceback" not in said.err and not list(tmp_path.iterdir())


def test_a_traceback_only_for_those_who_ask(undrift) -> None:
    assert "Traceback" not in undrift("run", "nowhere.toml").err
    assert "Traceback" in undrift("run", "nowhere.toml", "--debug").err


@pytest.fixture(scope="module")
def finished_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    in_this_process("compare", "fedavg", *SMALL, "--out", str(folder), "-q")
    return folder


@pytest.fixture
def finished(finished_once: Path, tmp_path: Path) -> None:
    """A finished run in the folder `run`."""
    shutil.copytree(finished_once, tmp_path / "run")


def test_nothing_is_overwritten(undrift, finished: None, tmp_path: Path) -> None:
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    said = undrift("compare", "fedavg", *SMALL, "--out", "run")
    assert said.code == 2 and "exists and is not empty" in said.err and "undrift resume run" in said.err
    assert before == {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}


def test_a_changed_experiment_or_other_data_are_refused(undrift, finished: None, tmp_path: Path) -> None:
    (tmp_path / "run" / "result.json").unlink()  # as if it had not ended
    federation = json.loads((tmp_path / "run/federation.json").read_text())
    write_json(tmp_path / "run/federation.json", federation | {"checksums": {"file": "00"}})
    said = undrift("resume", "run")
    assert said.code == 2 and "the data have changed" in said.err and "file" in said.err
    text = (tmp_path / "run/experiment.toml").read_text()
    (tmp_path / "run/experiment.toml").write_text(text.replace("lr = 0.1", "lr = 0.2"))
    said = undrift("resume", "run")
    assert said.code == 2 and "was changed after the run began" in said.err


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "federation.json", "model.safetensors", "result.json", "times.jsonl"]
)
def test_what_is_damaged_is_told_and_mended(undrift, finished: None, name: str, tmp_path: Path) -> None:
    said = undrift("verify", "run")
    assert said.code == 0 and said.out.strip().endswith("files sound, 0 damaged")
    assert all(line.startswith("sound") for line in said.out.splitlines()[:-1])
    path = tmp_path / "run" / name
    content = path.read_bytes()
    at = len(content) // 2
    path.write_bytes(content[:at] + bytes([content[at] ^ 2]) + content[at + 1 :])
    said = undrift("verify", "run", "--quiet")
    assert said.code == 1 and said.out.startswith(f"damaged  {Path('run') / name}") and "1 damaged" in said.out
    assert undrift("resume", "run", "-q").code == 0
    assert undrift("verify", "run", "--quiet").out == ""
    assert name == "times.jsonl" or path.read_bytes() == content


def test_a_report_of_damaged_figures_uses_the_copy_or_refuses(
    undrift, finished: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert undrift("report", "run", "-q").code == 0
    before = (tmp_path / "run/rounds.csv").read_bytes()
    path, copy = tmp_path / "run/metrics.jsonl", tmp_path / "run/.metrics.jsonl.copy"
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"accuracy":0.', b'"accuracy":1.', 1))
    said = undrift("report", "run", "-q")
    assert said.code == 0 and "its copy is used" in caplog.text
    assert (tmp_path / "run/rounds.csv").read_bytes() == before
    copy.write_bytes(copy.read_bytes().replace(b"accuracy", b"accurast", 1))
    said = undrift("report", "run", "-q")
    assert said.code == 2 and "metrics.jsonl is damaged, and so is its copy" in said.err


def test_the_second_process_on_a_run_refuses(undrift, finished: None, tmp_path: Path) -> None:
    (tmp_path / "run" / "result.json").unlink()
    held = lock(tmp_path / "run")
    try:
        said = undrift("resume", "run")
    finally:
        held.release()
    assert said.code == 2 and f"in use by another process, {os.getpid()}" in said.err


@pytest.mark.slow
def test_a_method_of_ones_own_from_a_file(undrift, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import undrift as ud\nfrom undrift.algorithms.fedavg import FedAvg\n"
        '@ud.algorithm("own-fedavg", "me")\nclass Own(FedAvg):\n    pass\n'
    )
    assert undrift("compare", "fedavg", "own-fedavg", "--use", "own.py", *SMALL, "--out", "run", "-q").code == 0
    own, plain = (metrics(tmp_path / "run")[f"{name}/seed-0/metrics.jsonl"] for name in ("own-fedavg", "fedavg"))
    assert own == plain
    METHODS.pop("own-fedavg")


@pytest.mark.slow
def test_files_of_ones_own_lie_beside_the_experiment(undrift, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    own = tmp_path / "project" / "mine.py"
    own.write_text(
        'import undrift as ud\nprint("hello")\n@ud.model\ndef tiny(inputs: int, classes: int):\n    return ud.models.mlp(inputs, classes)\n'
    )
    text = 'rounds = 3\nuse = ["mine.py"]\nmodel = "tiny"\n[algorithms.fedavg]\n[algorithms.scaffold]\n'
    (tmp_path / "project" / "e.toml").write_text(text)
    try:
        # what a file prints is not news of a run, and its path holds wherever one is
        assert undrift("run", "project/e.toml", "--out", "run", "--jobs", 2, "-q").code == 0
        (tmp_path / "run" / "report.html").unlink()
        assert undrift("resume", "run", "-q").code == 0 and (tmp_path / "run" / "report.html").exists()
        own.write_text(own.read_text() + "# changed\n")
        said = undrift("resume", "run", "--rounds", 5)
        assert said.code == 2 and "mine.py was changed after the run" in said.err
    finally:
        MODELS.pop("tiny", None)


def test_no_hidden_layer_stays_none(undrift, tmp_path: Path) -> None:
    assert undrift("compare", "fedavg", "--rounds", 1, "--set", "model.hidden=[]", "--out", "run", "-q").code == 0
    assert json.loads((tmp_path / "run/federation.json").read_text())["parameters"] == 650


@pytest.mark.slow
def test_a_comparison_made_longer_half_way_goes_on(undrift, tmp_path: Path) -> None:
    words = ["compare", "fedavg", "scaffold", *SMALL, "--out", "run", "-q"]
    assert undrift(*words, "--jobs", 1).code == 0
    shutil.rmtree(tmp_path / "run" / "scaffold" / "seed-0")
    (tmp_path / "run" / "scaffold" / "seed-0").mkdir()  # killed when it was being made
    assert undrift("resume", "run", "--rounds", 14, "-q").code == 0
    assert [content.count(b"\n") for content in metrics(tmp_path / "run").values()] == [14, 14]
    assert undrift("resume", "run", "--rounds", 14).code == 0


def test_every_command_has_help_with_an_example(undrift) -> None:
    for command in ("run", "compare", "resume", "report", "sweep", "list", "doctor"):
        said = undrift(command, "--help")
        assert said.code == 0 and "Example: undrift " + command in said.out, command


# real processes


def started(tmp_path: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "undrift.cli", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # tests that are themselves started in the background would hand down a Ctrl-C that is ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def wait_for(path: Path, lines: int) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        if path.exists() and path.read_bytes().count(b"\n") >= lines:
            return
        time.sleep(0.02)
    raise AssertionError(f"{path} has no {lines} lines")


LONG = [
    "--rounds",
    "60",
    "--steps",
    "5",
    "--batch",
    "5",
    "--dirichlet",
    "0.1",
    "--set",
    "threads=1",
]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """In this process: two give the same bytes, as was shown above."""
    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    words = ["compare", "scaffold", "ghbm", *LONG, "--out", str(folder), "-q", "--jobs", "1"]
    in_this_process(*words)
    return metrics(folder)


@pytest.mark.slow
@pytest.mark.xdist_group("interrupted")
def test_kill_nine_of_the_whole_command_and_resume(undrift, uninterrupted: dict[str, bytes], tmp_path: Path) -> None:
    run = started(tmp_path, "compare", "scaffold", "ghbm", *LONG, "--out", "run", "-q", "--jobs", "2")
    wait_for(tmp_path / "run/scaffold/seed-0/metrics.jsonl", 15)
    run.kill()  # its workers notice and are gone
    run.communicate()
    assert not (tmp_path / "run/scaffold/seed-0/result.json").exists()
    again = undrift("resume", "run", "-q", "--jobs", "1")
    assert again.code == 0, again.err
    assert metrics(tmp_path / "run") == uninterrupted


@pytest.mark.slow
@pytest.mark.xdist_group("interrupted")
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_says_how_to_resume(undrift, jobs: str, uninterrupted: dict[str, bytes], tmp_path: Path) -> None:
    run = started(tmp_path, "compare", "scaffold", "ghbm", *LONG, "--out", "run", "--jobs", jobs)
    wait_for(tmp_path / "run/scaffold/seed-0/metrics.jsonl", 5)
    run.send_signal(signal.SIGINT)
    _, err = run.communicate()
    assert run.returncode == 130
    assert "`undrift resume run` goes on" in err and "Traceback" not in err
    checkpoints = (tmp_path / "run/scaffold/seed-0/checkpoints").glob("0*.json")
    newest = max(int(path.name.split(".")[0]) for path in checkpoints)
    recorded = (tmp_path / "run/scaffold/seed-0/metrics.jsonl").read_bytes().count(b"\n")
    assert newest >= recorded - 1, "the last whole round has a checkpoint"
    again = undrift("resume", "run", "-q", "--jobs", "1")
    assert again.code == 0, again.err
    assert metrics(tmp_path / "run") == uninterrupted
    shutil.rmtree(tmp_path / "run")


def test_an_empty_population_is_no_failure_of_the_program() -> None:
    assert _said(Deserted("nobody is left", 3, None)) == ("nobody is left", 2)


def test_a_report_of_several_leaves_theirs_alone(undrift, tmp_path: Path) -> None:
    small = ["--clients", 5, "--per-round", 2, "--rounds", 1, "-q"]
    for name in ("one", "two"):
        assert undrift("compare", "fedavg", *small, "--out", name).code == 0
    before = (tmp_path / "one" / "report.html").read_bytes()
    assert undrift("report", "one", "two").code == 0
    assert (tmp_path / "one" / "report.html").read_bytes() == before
    assert (tmp_path / "runs" / "report" / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fedavg:lr=abc"], "fedavg:lr=abc: lr must be a number"),
        (["scaffold-m:beta=3", "fedavg"], "scaffold-m:beta=3: scaffold-m: beta must lie in (0, 1], got 3"),
        (
            ["fedavg", "--set", "algorithms.fedavg.server_lr=-1"],
            "--set algorithms.fedavg.server_lr=-1: fedavg: server_lr",
        ),
        (["fedavg", "--target", 950], "--target 950 cannot be reached: accuracy is a share such as 0.9"),
        (["fedavg", "--schedule", "exponential"], 'exponential needs factor: write "exponential:FACTOR"'),
    ],
)
def test_an_error_begins_with_what_was_typed(undrift, arguments: list[Any], message: str, tmp_path: Path) -> None:
    said = undrift("compare", *arguments)
    assert said.code == 2 and message in said.err and len(said.err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("metrics", ["test", "auroc", "drift", "tau_error"]),
        ("codecs", ["top-k", "quantised"]),
        ("optimisers", ["sgd", "adamw"]),
        ("schedules", ["cosine", "warmup"]),
    ],
)
def test_everything_that_has_a_name_is_listed(undrift, kind: str, names: list[str]) -> None:
    said = undrift("list", kind)
    assert said.code == 0 and all(name in said.out for name in names)


def test_more_threads_than_cores_are_said_once(undrift) -> None:
    threads = (os.cpu_count() or 1) + 1
    said = undrift("compare", "fedavg", "ghbm", *SMALL, "--jobs", 1, "--set", f"threads={threads}")
    assert said.code == 0 and said.err.count("more threads than cores") == 1


def test_signals_before_anything_has_begun_end_it_at_once(undrift, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two SIGTERMs while torch is loaded ended in an error about an import."""
    ended: list[int] = []

    def hit(text: str) -> None:
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)

    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(cli, "status", lambda quiet: nullcontext(hit))
    assert undrift("list", "spaces").err == "" and ended == [130, 130, 130]
