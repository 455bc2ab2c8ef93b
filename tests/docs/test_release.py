"""Files of a release agree with the project: versions, licences, what a host of repositories runs."""

import re
import tomllib
from pathlib import Path

import undrift as ud

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CI = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()


def test_the_citation_is_of_this_version() -> None:
    assert f"\nversion: {ud.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_licences_of_all_direct_dependencies_are_listed() -> None:
    page = (ROOT / "docs" / "licences.md").read_text()
    requirements = [each for group in PROJECT["optional-dependencies"].values() for each in group]
    for requirement in (*PROJECT["dependencies"], *requirements):
        name = re.sub(r"[-_.]+", "-", re.split(r"[\[<>=; ]", requirement)[0]).lower()
        assert name == "undrift" or f"| {name} |" in page, f"{name}: make licences"
    pinned = re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    for name, version in pinned:
        assert f"| {version} |" in page, f"{name} {version}: make licences"


def test_a_host_runs_every_supported_python_and_system_and_the_oldest_and_newest_torch() -> None:
    supported = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+", c)]
    assert re.findall(r"python: \[(.*)\]", CI) == [", ".join(f'"{v}"' for v in supported)] * 2
    assert all(system in CI for system in ("ubuntu-latest", "macos-latest", "windows-latest"))
    versions = re.findall(r"^TORCH \?= (.*)$", MAKEFILE, flags=re.MULTILINE)[0].split()
    assert re.findall(r"torch: \[(.*)\]", CI) == [", ".join(f'"{v}"' for v in versions)]
    assert re.findall(r"torch>=([\d.]+)", "\n".join(PROJECT["dependencies"]))[0] in versions[0]


def test_hooks_before_a_commit_are_those_of_make_check() -> None:
    hooks = re.findall(r"entry: \.venv/bin/(.*)", (ROOT / ".pre-commit-config.yaml").read_text())
    check = MAKEFILE.split("\ncheck:")[1].split("\n\n")[0]
    assert [hook.split() for hook in hooks] == [
        re.sub(r" \.$", "", line).split() for line in re.findall(r"\$\(BIN\)/(.*)", check)
    ]
