"""The licences of everything that constraints.txt pins, as the installed packages state them.

make licences        writes docs/licences.md
"""

import re
import tomllib
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

from _text import cell, table

ROOT = Path(__file__).parents[1]
HEAD = """# Licences of dependencies

Undrift is under Apache-2.0 and contains no code of the packages below; pip installs them. This page is written by `make licences` from what
the pinned versions (`constraints.txt`) state about themselves; the licence text of a package is in the package.

"""


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {"": project["dependencies"], **project["optional-dependencies"]}
    direct: dict[str, str] = {}
    for extra, requirements in extras.items():
        for requirement in requirements:
            name = _normal(re.split(r"[\[<>=; ]", requirement)[0])
            if name != "undrift":
                direct.setdefault(name, extra or "always")
    pinned = re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    versions = {_normal(name): version for name, version in pinned}
    first = [(name, versions.get(name, ""), *_stated(name), extra) for name, extra in direct.items()]
    others = [(name, version, *_stated(name)) for name, version in versions.items() if name not in direct]
    text = HEAD + "## Direct\n\n" + table(("package", "version", "licence", "installed with"), first)
    text += "\n## Through these\n\n" + table(("package", "version", "licence"), others)
    (ROOT / "docs" / "licences.md").write_text(text, encoding="utf-8")


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _stated(name: str) -> tuple[str]:
    """The licence that a package states: an expression, else classifiers, else the first line of its text."""
    try:
        about = metadata(name)
    except PackageNotFoundError:
        return ("not pinned: see the package",)
    classifiers = [c.split(" :: ")[-1] for c in about.get_all("Classifier") or [] if c.startswith("License ::")]
    words = about["License-Expression"] or "; ".join(classifiers) or about["License"] or "not stated"
    return (cell(words.strip().splitlines()[0]),)


if __name__ == "__main__":
    main()
