"""Numbers and files that an experiment can name: each has a bound, and is refused in a line before anything is taken."""

import time
from pathlib import Path

import pytest

import undrift as ud
from undrift.experiments.config import read

REFUSED = {
    "population = 3": "population must be a section of keys and values, got 3",
    "use = 3": "use must be a list in brackets, got 3",
    "population = " + "[" * 5000: "is not TOML",
    "seeds = 100000000": "at most 10,000 repetitions, got 100,000,000",
    f"seeds = [{10**30}]": "seeds",
    f"rounds = {10**30}": "rounds must be at most 1000000000",
    "threads = 10000000": "threads must be at most 1024",
    'engine = {name = "sequential", workers = 100000}': "workers must lie in [1, 4096], got 100000",
    "local = {steps = 1000000000}": "steps must be at most 10000000",
    "local = {steps = {geometric = 1e-12}}": "steps' p must lie in [1e-07, 1]",
    f"model = {{name = 'mlp', seed = {10**30}}}": "model.seed must be at most 9223372036854775807",
    f"clients = {{partition = 'iid', number = 5, seed = {10**25}}}": "clients.seed must be at most",
    "population = {availability = {kind = 'trace', path = '/dev/zero'}}": "there is no trace /dev/zero",
    "name = '" + "x" * 5000 + "!'": "a label or name becomes a folder",
    "rounds = " + "9" * 5000: "is not TOML",
}


@pytest.mark.parametrize("line", REFUSED, ids=[line[:40] for line in REFUSED])
def test_a_number_or_file_beyond_its_bound_is_refused_in_a_line(line: str, tmp_path: Path) -> None:
    path = tmp_path / "e.toml"
    path.write_text(f'{line}\nalgorithm = "fedavg"\n')
    with pytest.raises(ud.InvalidInput) as error:
        read(path)
    said = str(error.value)
    assert REFUSED[line] in said and len(said) <= 500 and "\n" not in said


def test_a_device_or_a_huge_file_is_no_experiment(tmp_path: Path) -> None:
    with pytest.raises(ud.InvalidInput, match="it is no file"):
        read("/dev/zero")
    with (tmp_path / "e.toml").open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(ud.InvalidInput, match="is it the right file"):
        read(tmp_path / "e.toml")


def test_blanks_and_dots_take_no_time(tmp_path: Path) -> None:
    path = tmp_path / "e.toml"
    path.write_text(f'algorithm = "fedavg"\n# {"." * 20_000}"\nx = """\n{" " * 20_000}\n{"a." * 10_000}"\n"""\n')
    begun = time.perf_counter()
    with pytest.raises(ud.InvalidInput, match="unknown key 'x'"):
        read(path)
    assert time.perf_counter() - begun < 5  # it took minutes


def test_a_model_that_memory_cannot_hold(tmp_path: Path) -> None:
    from undrift.experiments.config.parts import model_maker

    make = model_maker("mlp", {"hidden": [10**9, 10**9]})
    with pytest.raises(ud.InvalidInput, match=r"model mlp with .* would take .* GiB of memory, .* are free"):
        make({"inputs": 64, "classes": 10})
