"""What the documents say is so: examples run, tests they name exist."""

import pkgutil
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import undrift as ud

ROOT = Path(__file__).parents[2]


def test_the_readme_is_one_screen_and_names_the_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 50
    assert "make demo" in text and "make test" in text


def test_errata_name_tests_that_exist() -> None:
    text = (ROOT / "docs" / "errata.md").read_text()
    assert [int(n) for n in re.findall(r"^## (\d+)\.", text, flags=re.MULTILINE)] == list(range(1, 30))
    source = "\n".join(p.read_text() for p in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)", text)) - {"test_equivalence", "test_mutant_is_caught"}
    assert len(named) > 15
    for test in named:
        assert f"def {test}(" in source or f"{test}.py" in text, test
    for bug in re.findall(r"`([^`\n]*\(RickZack[^`\n]*)`", text):
        assert f'"{bug}"' in source, bug


def test_files_and_tests_that_documents_name_exist() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        text = page.read_text()
        for name in re.findall(r"`((?:tests|benchmarks|examples|recipes)/[\w./-]+)`", text):
            assert (ROOT / name).exists(), f"{page.name} names {name}"
        for test, file in re.findall(r"`(test_\w+)(?:\[[^`]*\])?` in\s+`(tests/[\w./]+)`", text):
            assert f"def {test}(" in (ROOT / file).read_text(), f"{page.name}: {test} in {file}"


def test_every_errata_test_is_in_the_errata() -> None:
    text = (ROOT / "docs" / "errata.md").read_text()
    source = (ROOT / "tests" / "algorithms" / "test_errata.py").read_text()
    for test in re.findall(r"^def (test_\w+)\(", source, flags=re.MULTILINE):
        assert f"`{test}`" in text, test


def test_functions_that_the_design_follows_are_where_it_says() -> None:
    """The lists "From a command to the report" and "One round": at most a dozen steps each, every name in its file."""
    text = (ROOT / "docs" / "design.md").read_text()
    for heading in ("From a command to the report", "One round"):
        steps = text.split(f"## {heading}\n")[1].split("\n## ")[0]
        assert 5 < len(re.findall(r"^\d+\. ", steps, flags=re.MULTILINE)) <= 12
        file = ""
        named = re.findall(r"`([\w.]+)`\s*\((?:`([\w/]+\.py)`|same file)", steps)
        assert len(named) > 10
        for name, path in named:
            file = path or file
            *owner, function = name.split(".")
            source = (Path(ud.__file__).parent / file).read_text()
            for kind, each in (("class", *owner), ("def|class", function)) if owner else (("def|class", function),):
                assert re.search(rf"^ *(?:{kind}) {each}\b", source, flags=re.MULTILINE), f"{name} in {file}"


def test_no_name_has_two_public_meanings() -> None:
    """What packages export under one name is one thing."""
    meanings: dict[str, object] = {}
    for found in pkgutil.walk_packages(ud.__path__, "undrift."):
        if not found.ispkg or found.name in ("undrift.flower", "undrift.theory"):  # whose names are the papers'
            continue
        module = import_module(found.name)
        for name in vars(module).get("__all__", ()):
            assert meanings.setdefault(name, getattr(module, name)) is getattr(module, name), f"{name} in {found.name}"
    for name in ud.__all__:
        assert meanings.get(name, getattr(ud, name)) is getattr(ud, name), name


def test_no_module_hides_a_public_name() -> None:
    """A module takes the place of a name like its own when it is imported later than the name is given."""
    for found in pkgutil.walk_packages(ud.__path__, "undrift."):
        if found.name == "undrift.flower":  # the old name of undrift.deploy
            with pytest.deprecated_call():
                import_module(found.name)
        elif not found.name.endswith("__main__"):
            import_module(found.name)
    hidden = [name for name in ud.__all__ if isinstance(getattr(ud, name), ModuleType)]
    assert hidden == ["models", "theory"]
