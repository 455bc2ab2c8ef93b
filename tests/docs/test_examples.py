"""The examples in the documents: Python runs, experiments are valid, command lines can be parsed."""

import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import tomli_w
import typer

import undrift as ud
from tests.support.oracles.world import make_world
from tests.support.real_data import real_data
from tests.support.toy_problem import WorldProblem, gap, path
from undrift.cli.app import app
from undrift.experiments.config import read

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXTS = {str(page.relative_to(ROOT)): page.read_text() for page in PAGES}


def blocks(page: str, *kinds: str) -> list[str]:
    """The blocks of a page that are marked with one of these languages, in order."""
    pattern = rf"^```(?:{'|'.join(kinds)})\n(.*?)^```"
    return re.findall(pattern, TEXTS[page], flags=re.DOTALL | re.MULTILINE)


# Python

CELL = r"\{code-cell\} python"  # of a page that is a notebook


def code(page: str) -> list[str]:
    """What a page has to run, in order; options of cells are the site's."""
    return [re.sub(r"^:.*\n", "", block, flags=re.MULTILINE) for block in blocks(page, "python", CELL)]


def has_commands(page: str) -> bool:
    """Whether cells call commands of the shell, which only a kernel can do."""
    return any(block.startswith("%%bash") for block in code(page))


def check_readme(names: dict[str, Any]) -> None:
    (example,) = blocks("README.md", "python")
    assert len(example.strip().splitlines()) <= 12
    assert names["result"].history[-1].metrics["accuracy"] > 0.7


def check_method_of_contributing(names: dict[str, Any]) -> None:
    (file,) = blocks("CONTRIBUTING.md", "python")
    code = [line for line in file.split('"""')[2].splitlines() if line.strip()]
    assert len(code) <= 25
    ours = ud.method("slowmo", alpha=0.8, beta=0.6)
    problem, local = WorldProblem(make_world()), ud.Local(steps=3, lr=0.05)
    theirs = ud.FedAvgM(eta=0.8, beta=0.6, dampened=False)
    a, b = (path(x, problem, rounds=10, local=local) for x in (ours, theirs))
    assert gap(a, b) < 1e-12
    assert np.abs(a[-1] - a[0]).max() > 0.1


def check_asynchrony(names: dict[str, Any]) -> None:
    assert names["result"].history[-1].time > 0


def check_python(names: dict[str, Any]) -> None:
    comparison = names["comparison"]
    assert comparison.summary.row("scaffold").mean > comparison.summary.row("fedavg").mean
    assert names["early"].stopped and len(names["early"].history) < 200
    assert [r.round for r in names["longer"].history] == [11, 12, 13, 14, 15]


CHECKS: dict[str, Callable[[dict[str, Any]], None]] = {
    "README.md": check_readme,
    "CONTRIBUTING.md": check_method_of_contributing,
    "docs/asynchrony.md": check_asynchrony,
    "docs/python.md": check_python,
}
NAMES = {"CONTRIBUTING.md": "undrift.algorithms.fedavg"}  # it imports as a file of that package does
REAL_DATA = ("docs/data.md",)
SLOW = ("docs/data.md", "docs/personalisation.md")  # 4 million windows of text; the import of transformers


def marked(page: str) -> Any:
    return pytest.param(page, marks=[pytest.mark.slow] if page in SLOW else [])


@pytest.mark.parametrize("page", [marked(page) for page in TEXTS if code(page) and not has_commands(page)])
def test_python_runs(page: str, registries: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The blocks of a page, one after another in one namespace."""
    monkeypatch.chdir(tmp_path)
    if page in REAL_DATA:
        monkeypatch.setenv("UNDRIFT_DATA", str(real_data()))
    names: dict[str, Any] = {"__name__": NAMES.get(page, "__main__")}
    for block in code(page):
        exec(compile(block, page, "exec"), names)
    if page in CHECKS:
        CHECKS[page](names)


def test_every_check_has_its_example() -> None:
    assert all(code(page) for page in (*CHECKS, *NAMES, *REAL_DATA, *SLOW))


# experiments

TOML = [
    pytest.param(page, block, id=f"{page}-{number}")
    for page in TEXTS
    for number, block in enumerate(blocks(page, "toml"))
]


FILES = {"devices.csv": "client,from,to\n0,0,60\n1,30,90\n"}  # that experiments name


@pytest.mark.parametrize("page, block", TOML)
def test_experiments_are_valid(page: str, block: str, registries: None, tmp_path: Path) -> None:
    """A block that is a part of an experiment is completed with FedAvg, and `use` with the page's last Python."""
    words = tomllib.loads(block)
    if not words.keys() & {"algorithm", "algorithms"}:
        words["algorithm"] = {"name": "fedavg"}
    for name in words.get("use", ()):
        (tmp_path / name).write_text(blocks(page, "python")[-1])
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    file = tmp_path / "experiment.toml"
    file.write_text(tomli_w.dumps(words))
    experiment = read(file)
    for label in experiment.labels:
        experiment.methods[label].make()
        experiment.local_of(label)
    experiment.participation.make()


# command lines


def command_lines(text: str) -> Iterator[str]:
    """Lines of shell blocks and of indented blocks that call undrift."""
    shell = re.findall(r"^```(?:sh|console|bash|shell)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    shell += re.findall(r"^%%bash\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    indented = [line for line in text.splitlines() if line.startswith("    ")]
    lines = "\n".join(shell).replace("\\\n", " ").splitlines() + indented
    for line in lines:
        found = re.match(r"\s*(?:\$ )?(?:[A-Z_]+=\S+ )*(undrift [a-z-][^&]*)", line)
        if found:
            yield found[1]


def inline_commands(text: str) -> Iterator[str]:
    """`undrift ...` within a sentence, which may leave out what a command needs."""
    outside = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    yield from re.findall(r"`(undrift [a-z-][^`]*)`", outside)


LINES = [(page, line) for page, text in TEXTS.items() for line in command_lines(text)]
INLINE = [(page, line) for page, text in TEXTS.items() for line in inline_commands(text)]


def parsed(line: str) -> None:
    """Everything that the command line does with these words, but the command itself."""

    def disarm(command: click.Command) -> None:
        if isinstance(command, click.Group):
            for each in command.commands.values():
                disarm(each)
        else:
            command.callback = lambda **_: None

    command = typer.main.get_command(app)
    disarm(command)
    words = shlex.split(line, comments=True)[1:]
    command.main(args=words, prog_name="undrift", standalone_mode=False)


@pytest.mark.parametrize("page, line", LINES)
def test_command_lines_can_be_parsed(page: str, line: str) -> None:
    parsed(line)


@pytest.mark.parametrize("page, line", INLINE)
def test_commands_in_sentences_exist(page: str, line: str) -> None:
    try:
        parsed(line)
    except click.MissingParameter:
        pass


COMMAND_PAGES = [
    page
    for page, text in TEXTS.items()
    if any(command_lines(re.sub(rf"^```{CELL}.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)))
]
EXECUTED = {"docs/reproductions.md"}  # its commands have been run: it is written from their results


@pytest.mark.parametrize("page", sorted({*COMMAND_PAGES} - EXECUTED))
def test_commands_that_are_not_run_have_a_reason(page: str) -> None:
    """Python and cells are executed, TOML is validated; commands outside cells are parsed, and the page says why no more."""
    assert re.search(r"<!-- commands are not run: .+ -->", TEXTS[page]), page


def test_every_kind_of_block_is_tested() -> None:
    kinds = {kind for text in TEXTS.values() for kind in re.findall(r"^```([\w{}-]+)", text, flags=re.MULTILINE)}
    directives = {"{include}", "{image}", "{toctree}", "{literalinclude}"}
    assert kinds <= {"python", "{code-cell}", "toml", "sh", *directives}


def test_there_are_command_lines() -> None:
    assert len(LINES) > 15 and len(INLINE) > 5


@pytest.mark.parametrize("line", ["undrift rum x.toml", "undrift run x.toml --enginne ray"])
def test_wrong_command_lines_are_found(line: str) -> None:
    with pytest.raises(click.UsageError):
        parsed(line)
