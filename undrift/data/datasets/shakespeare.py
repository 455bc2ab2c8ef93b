"""Shakespeare by speaking role (LEAF) and tinyshakespeare by speaker: predict the next character."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from undrift.core.errors import InvalidInput, first_line
from undrift.data import store
from undrift.data.datasets.common import look_up_clients
from undrift.data.registry import Data, dataset

# LEAF's 80 characters; a character's code is its place
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
TINY_ALPHABET = "\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
LENGTH = 80
LEAF_HINT = (
    "no archive of it is hosted: in a copy of https://github.com/TalwalkarLab/leaf run "
    "`./preprocess.sh -s niid --sf 1.0 -k 0 -t sample -tf 0.9` in data/shakespeare "
    "and put its folder `data` there"
)
TINY_URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"


@dataclass(frozen=True, eq=False)
class Windows:
    """Start positions to the `length` codes that begin there, int64 [..., length]: overlapping windows, one text.

    >>> Windows(torch.tensor([5, 6, 7, 8], dtype=torch.uint8), 2)(torch.tensor([0, 2]))
    tensor([[5, 6],
            [7, 8]])
    """

    text: Tensor = field(repr=False)
    length: int

    def __call__(self, batch: Tensor) -> Tensor:
        start = batch.to(self.text.device, torch.int64).unsqueeze(-1)
        steps = torch.arange(self.length, device=self.text.device)
        return self.text[start + steps].to(batch.device, torch.int64)


@dataclass(frozen=True)
class Role:
    """The samples of one client: its text, where in it the windows begin, and the character after each window."""

    text: np.ndarray  # uint8 codes
    starts: np.ndarray
    targets: np.ndarray

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, some: slice) -> "Role":
        return Role(self.text, self.starts[some], self.targets[some])


@dataset(
    "shakespeare",
    about="LEAF Shakespeare by speaking role, from Project Gutenberg etext 100; "
    "that edition is not for commercial distribution",
    clients=1129,
)
def shakespeare(path: str | Path | None = None, length: int = LENGTH) -> Data:
    """LEAF's Shakespeare by speaking role: predict the character after 80; 80 classes.

    path     a JSON file (plain or gzip) or a folder of them in LEAF's form; by default what lies with the data set:
             data/train and data/test, or data/all_data, or all_data.json, or shakespeare_by_role.json.gz
    length   of the windows

    A user of LEAF's form has lists x (windows) and y (next characters), or `raw` text, which is cut into all its
    windows.  Data that come in one part are split by role in the order of time: the last tenth (at least one window)
    is for testing.  A test target is then never part of a training window, though the text before it may be.  Roles
    with fewer than two windows are left out.  Stored inputs are positions in one text; `prepare` gives windows.
    """
    _check_length("shakespeare", length)
    train_files, test_files = _leaf_files(path)
    files = [*train_files, *test_files]
    train, test = read_leaf(train_files, length), read_leaf(test_files, length)
    if not test_files:
        train, test = split_by_time(train)
    return _join_roles("shakespeare", train, test, length, len(ALPHABET), files)


@dataset("tinyshakespeare", about="tinyshakespeare of char-rnn (Karpathy); public domain", clients=255)
def tinyshakespeare(length: int = LENGTH) -> Data:
    """tinyshakespeare with its speakers as clients: predict the character after `length`; 65 classes.

    A speaker's lines are joined in their order, whatever play they are from.  The last tenth of the windows of each
    speaker is for testing; speakers with fewer than two windows are left out.
    """
    _check_length("tinyshakespeare", length)
    name = "tinyshakespeare.txt"
    aliases = [name, f"{name}.gz", f"shakespeare/{name}.gz"]
    path = store.find("tinyshakespeare", "input.txt", url=TINY_URL, aliases=aliases)
    roles = {
        speaker: cut_windows(encode(text, TINY_ALPHABET, f"{path}, {speaker}"), length)
        for speaker, text in group_by_speaker(store.read_text(path)).items()
    }
    train, test = split_by_time(roles)
    return _join_roles("tinyshakespeare", train, test, length, len(TINY_ALPHABET), [path])


def group_by_speaker(text: str) -> dict[str, str]:
    """Who says what in a text of paragraphs that begin with a line `Name:`.

    >>> group_by_speaker("ROMEO:\\nAy me!\\n\\nJULIET:\\nO Romeo!\\n\\nROMEO:\\nCall me but love.\\n")
    {'ROMEO': 'Ay me!\\nCall me but love.', 'JULIET': 'O Romeo!'}
    """
    lines: dict[str, list[str]] = {}
    for paragraph in re.split(r"\n\n+", text.strip("\n")):
        name, _, speech = paragraph.partition("\n")
        if not name.endswith(":"):
            raise InvalidInput(
                f"a paragraph of the text begins with {name[:40]!r}; each must begin with a line `Name:`"
            )
        lines.setdefault(name[:-1], []).append(speech)
    return {name: "\n".join(parts) for name, parts in lines.items()}


def encode(text: str, alphabet: str, where: str) -> np.ndarray:
    """Characters as uint8 codes, their places in the alphabet.

    >>> encode("cab", "abc", "here").tolist()
    [2, 0, 1]
    """
    table = np.full(0x110000 if not text.isascii() else 128, 255, dtype=np.uint8)
    table[[ord(character) for character in alphabet]] = np.arange(len(alphabet))
    codes = table[np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)]
    if (codes == 255).any():
        raise InvalidInput(
            f"{where}: the character {text[int(np.argmax(codes == 255))]!r} is not one of the "
            f"{len(alphabet)} of the alphabet"
        )
    return codes


def cut_windows(text: np.ndarray, length: int) -> Role:
    """All windows of a text that have a character after them."""
    starts = np.arange(max(0, len(text) - length))
    return Role(text, starts, text[starts + length])


def split_by_time(roles: Mapping[str, Role]) -> tuple[dict[str, Role], dict[str, Role]]:
    """The first nine tenths of each role's windows, and the last tenth, at least one; who has one is left out."""
    early, late = {}, {}
    for name, role in roles.items():
        if len(role) >= 2:
            n = len(role) - max(1, len(role) // 10)
            early[name], late[name] = role[:n], role[n:]
    return early, late


def read_leaf(files: Sequence[Path], length: int = LENGTH) -> dict[str, Role]:
    """Users of LEAF's JSON files, in their order; a user who is in several files has the windows of all."""
    parts: dict[str, list[Role]] = {}
    for file in files:
        for user, role in _read_leaf_users(file, length):
            parts.setdefault(user, []).append(role)
    joined = {user: _concatenate(roles) for user, roles in parts.items()}
    return {user: role for user, role in joined.items() if len(role) > 0}


def _check_length(dataset: str, length: int) -> None:
    if length < 1:
        raise InvalidInput(f"{dataset}: length must be 1 or more characters, got {length}")


def _leaf_files(path: str | Path | None) -> tuple[list[Path], list[Path]]:
    """JSON files of the training part and of the test part; no test part: all is in the first."""
    if path is not None:
        root = Path(path)
        if root.is_file():
            return [root], []
        if (root / "train").is_dir() and (root / "test").is_dir():
            return _json_files(root / "train"), _json_files(root / "test")
        return _json_files(root), []
    for parts in (("data/train", "data/test"), ("train", "test")):
        train, test = (store.locate_folder("shakespeare", [part]) for part in parts)
        if train and test:
            return _json_files(train), _json_files(test)
    whole = store.locate_folder("shakespeare", ["data/all_data"])
    if whole:
        return _json_files(whole), []
    names = ["all_data.json", "all_data.json.gz", "shakespeare_by_role.json"]
    file = store.find("shakespeare", "shakespeare_by_role.json.gz", aliases=names, hint=LEAF_HINT)
    return [file], []


def _json_files(folder: Path) -> list[Path]:
    files = sorted([*folder.glob("*.json"), *folder.glob("*.json.gz")])
    if not files:
        raise store.DataMissing(f"{folder} has no *.json files; {LEAF_HINT}")
    return files


def _read_leaf_users(file: Path, length: int) -> Iterator[tuple[str, Role]]:
    text = store.read_text(file)
    try:
        content = json.loads(text)
        users, counts, data = (content[key] for key in ("users", "num_samples", "user_data"))
        entries = [data[user] for user in users]
        if not (isinstance(users, list) and isinstance(counts, list)):
            raise TypeError("users and num_samples are lists")
        if len(set(users)) < len(users):
            raise ValueError("a user is there twice")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidInput(
            f"{file} is not in LEAF's form, JSON with users, num_samples and user_data of each user "
            f"({type(error).__name__}: {first_line(error)[:80]}): make it again"
        ) from error
    if len(counts) != len(users):
        raise InvalidInput(f"{file}: {len(users)} users and {len(counts)} num_samples")
    for user, count, entry in zip(users, counts, entries, strict=True):
        role = _read_role(f"{file}, {str(user)[:40]}", entry, length)
        # of raw text, num_samples counts LEAF's own windows
        if len(role) != count and ("x" in entry or length == LENGTH):
            raise InvalidInput(
                f"{file}: {str(user)[:40]} has {len(role)} windows of {length} characters, "
                f"num_samples says {str(count)[:40]}"
            )
        yield user, role


def _read_role(where: str, entry: Any, length: int) -> Role:
    if not isinstance(entry, dict) or not ({"x", "y"} <= entry.keys() or "raw" in entry):
        raise InvalidInput(f"{where}: must have lists x and y, or raw text")
    if "x" not in entry:
        raw = entry["raw"]
        if not isinstance(raw, str):
            raise InvalidInput(f"{where}: raw must be text, got {type(raw).__name__}")
        # as LEAF does before it cuts windows
        text = re.sub(r"  +", " ", raw.replace("\n", " "))
        return cut_windows(encode(text, ALPHABET, where), length)
    x, y = entry["x"], entry["y"]
    if not all(isinstance(part, list) and all(isinstance(text, str) for text in part) for part in (x, y)):
        raise InvalidInput(f"{where}: x and y must be lists of texts")
    if len(x) != len(y):
        raise InvalidInput(f"{where}: {len(x)} windows x and {len(y)} next characters y")
    for i, (window, after) in enumerate(zip(x, y, strict=True)):
        if (len(window), len(after)) != (length, 1):
            raise InvalidInput(
                f"{where}: sample {i} has {len(window)} characters and then {len(after)}, allowed are {length} and 1"
            )
    text, targets = (encode("".join(parts), ALPHABET, where) for parts in (x, y))
    return Role(text, np.arange(len(x)) * length, targets)


def _concatenate(roles: Sequence[Role]) -> Role:
    if len(roles) == 1:
        return roles[0]  # its text stays the same object, which _join_roles stores once
    begins = np.cumsum([0, *(len(role.text) for role in roles[:-1])])
    return Role(
        np.concatenate([role.text for role in roles]),
        np.concatenate([role.starts + b for role, b in zip(roles, begins, strict=True)]),
        np.concatenate([role.targets for role in roles]),
    )


def _join_roles(
    dataset: str, train: Mapping[str, Role], test: Mapping[str, Role], length: int, classes: int, files: Sequence[Path]
) -> Data:
    """One text of all roles; where train and test share a role's text it is there once."""
    if not train or not test:
        raise InvalidInput(
            f"{dataset}: no role has windows of {length} characters to train and to test: take a smaller length"
        )
    texts = {id(role.text): role.text for role in (*train.values(), *test.values())}
    ends = np.cumsum([len(text) for text in texts.values()])
    begins = dict(zip(texts, (0, *ends.tolist()), strict=False))
    dtype = np.int32 if ends[-1] < 2**31 else np.int64

    def join(roles: Mapping[str, Role]) -> tuple[tuple[Tensor, Tensor], Tensor]:
        starts = [(role.starts + begins[id(role.text)]).astype(dtype) for role in roles.values()]
        targets = np.concatenate([role.targets for role in roles.values()]).astype(np.int64)
        counts = torch.tensor([len(role) for role in roles.values()])
        clients = look_up_clients(roles, tuple(train)).repeat_interleave(counts)
        return (torch.from_numpy(np.concatenate(starts)), torch.from_numpy(targets)), clients

    (samples, clients), (test_samples, test_clients) = join(train), join(test)
    return Data(
        dataset,
        samples,
        test_samples,
        clients,
        test_clients,
        tuple(train),
        classes=classes,
        prepare=Windows(torch.from_numpy(np.concatenate(list(texts.values()))), length),
        checksums=store.checksums(files),
    )
