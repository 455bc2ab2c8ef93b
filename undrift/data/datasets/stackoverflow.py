"""Stack Overflow by user, in the HDF5 files of TensorFlow Federated: predict every next word."""

from collections.abc import Container, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from undrift.core.errors import InvalidInput
from undrift.data import store
from undrift.data.datasets.common import look_up_clients
from undrift.data.registry import IGNORED, Data, dataset

_HINT = (
    "unpack stackoverflow.tar.bz2 and stackoverflow.word_count.tar.bz2 of "
    "https://storage.googleapis.com/tff-datasets-public/"
)
FILES = ("stackoverflow.word_count", "stackoverflow_train.h5", "stackoverflow_test.h5")
PAD = 0  # words are 1 to n, then unknown words, beginning and end of a sentence


@dataset("stackoverflow", about="Stack Overflow by user, published by TFF; CC BY-SA 3.0", clients=342_477)
def stackoverflow(
    clients: int | None = None,
    sentences: int | None = None,
    vocabulary: int = 10_000,
    length: int = 20,
    verify: bool = False,
) -> Data:
    """Stack Overflow by user, in the HDF5 files of TensorFlow Federated: predict every next word.

    clients      the first so many users, in the order of their names, for testing the same; None: all 342,477
    sentences    at most so many of each user, the first ones
    vocabulary   the most frequent words that have a code; with padding, unknown, begin and end there are 4 more classes
    length       of the sequences; longer sentences are cut, shorter ones padded with 0
    verify       also take the sha256 of the HDF5 files, which are tens of gigabytes

    Inputs are int16 [n, length], a sentence after its begin mark; targets int64 [n, length], the same one place on, where
    -100 is padding, which F.cross_entropy and accuracy leave out.  A sentence takes 200 bytes.  Needs h5py.
    """
    limits = {"clients": clients, "sentences": sentences, "vocabulary": vocabulary, "length": length}
    for name, value in limits.items():
        if value is not None and value < 1:
            raise InvalidInput(f"stackoverflow: {name} must be 1 or more, got {value}")
    if vocabulary > 32_000:
        raise InvalidInput(f"stackoverflow: vocabulary must be at most 32,000, got {vocabulary}")
    files = [store.find("stackoverflow", name, hint=_HINT) for name in FILES]
    words = read_vocabulary(files[0], vocabulary)
    users, counts, train = _read_sentences(files[1], words, length, clients, sentences)
    # a cut of the training users cuts the test to the same ones, so that the two stay comparable
    only = None if clients is None else set(users)
    test_users, test_counts, test = _read_sentences(files[2], words, length, None, sentences, only)
    return Data(
        "stackoverflow",
        train,
        test if test_users else None,
        look_up_clients(users, users).repeat_interleave(counts),
        look_up_clients(test_users, users).repeat_interleave(test_counts) if test_users else None,
        tuple(users),
        classes=len(words) + 4,
        prepare=Tensor.long,  # which an embedding takes
        checksums=store.checksums(files if verify else files[:1]),
    )


def read_vocabulary(path: Path, n: int) -> dict[str, int]:
    """The codes 1 to n of the words of a file with lines `word count`, the most frequent first."""
    words: dict[str, int] = {}
    for number, line in enumerate(store.read_text(path).splitlines()[:n], start=1):
        word, _, count = line.rpartition(" ")
        if not word or not count.isdecimal() or word in words:
            raise InvalidInput(f"{path}, line {number}: must be a new word and its count, got {line[:40]!r}")
        words[word] = number
    if len(words) < n:
        raise InvalidInput(f"{path} has {len(words)} words, {n} are needed: give vocabulary=...")
    return words


def encode_sentence(sentence: str, words: Mapping[str, int], length: int) -> list[int]:
    """Begin mark, codes of at most `length` words, end mark if there is room, padding: length + 1 codes in all.

    >>> encode_sentence("to be or", {"to": 1, "be": 2}, 5)
    [4, 1, 2, 3, 5, 0]
    """
    other, begin, end = (len(words) + k for k in (1, 2, 3))
    codes = [words.get(word, other) for word in sentence.split()[:length]]
    marked = [begin, *codes, end][: length + 1]
    return marked + [PAD] * (length + 1 - len(marked))


def _read_sentences(
    path: Path,
    words: Mapping[str, int],
    length: int,
    clients: int | None,
    sentences: int | None,
    only: Container[str] | None = None,
) -> tuple[list[str], Tensor, tuple[Tensor, Tensor]]:
    """Users, how many sentences each has, and the sequences of all of them."""
    try:
        import h5py
    except ImportError as error:
        raise InvalidInput("stackoverflow: reading HDF5 needs h5py: pip install h5py") from error
    blocks: dict[str, np.ndarray] = {}
    try:
        with h5py.File(path, "r") as file:
            examples: Any = file["examples"]
            for user in islice(sorted(examples), clients):
                if only is None or user in only:
                    tokens = examples[user]["tokens"]
                    store.check_unpacked(path, tokens.nbytes)
                    codes = [encode_sentence(_decode(line), words, length) for line in tokens[:sentences]]
                    blocks[user] = np.array(codes, dtype=np.int16).reshape(-1, length + 1)
    except InvalidInput:
        raise
    except (OSError, KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:  # as HDF5 has it
        raise InvalidInput(
            f"{path} cannot be read ({error}): it must be HDF5 with examples/<user>/tokens; get it again"
        ) from error
    blocks = {user: block for user, block in blocks.items() if len(block)}
    codes = np.concatenate([*blocks.values(), np.zeros((0, length + 1), np.int16)])
    inputs, targets = np.ascontiguousarray(codes[:, :-1]), codes[:, 1:].astype(np.int64)
    targets[targets == PAD] = IGNORED
    counts = torch.tensor([len(block) for block in blocks.values()], dtype=torch.int64)
    return list(blocks), counts, (torch.from_numpy(inputs), torch.from_numpy(targets))


def _decode(line: Any) -> str:
    return line.decode("utf-8") if isinstance(line, bytes) else str(line)
