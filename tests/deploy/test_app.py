"""What surrounds a deployed run: Flower's records, settings, the folder of an app, keys."""

import os
import ssl
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

import undrift as ud
from tests.support.in_process_nodes import experiment, simulated
from undrift.core.algorithm import Cohort
from undrift.core.records import map_tensors, nbytes, tensors
from undrift.deploy.flower import count_bytes, from_records, to_records
from undrift.deploy.keys import write_certificates, write_node_key
from undrift.deploy.messages import (
    NOT_VISITED,
    Envelope,
    Stamp,
    StateStamp,
    digest,
    digest_of,
    mark_of,
    pack_tensors,
    stamps_of,
    unpack_tensors,
)
from undrift.deploy.project import write_app
from undrift.deploy.settings import Deployment
from undrift.deploy.state_store import ClientStateStore, verify_states
from undrift.experiments.config import read
from undrift.experiments.config.federation import federation


def test_a_message_survives_flowers_records() -> None:
    method = ud.ScaffoldM()
    down = method.send(method.server(torch.randn(30)))
    shape, arrays = pack_tensors("down", down)
    envelope = Envelope("work", {"visit": {"round": 1, "base": [0, 0]}, "down": shape}, arrays)
    back = from_records(to_records(envelope))
    assert (back.kind, back.header) == (envelope.kind, envelope.header)
    again = unpack_tensors(back.header["down"], back.arrays, down)
    assert torch.equal(again.x, down.x) and torch.equal(again.h, down.h)
    assert digest_of(back) == digest_of(envelope), "both sides know what was asked"
    assert nbytes(down) < count_bytes(to_records(envelope)) < nbytes(down) + 1000


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_stamps_are_exact_in_checkpoints(dtype: torch.dtype) -> None:
    for stamp in (Stamp(2049, 1), Stamp(123_456, 3), Stamp(2**32 - 1, 255, "f" * 16)):
        assert stamps_of(StateStamp.of(stamp, torch.zeros(5, dtype=dtype))) == [stamp]
    assert NOT_VISITED < Stamp(0, 1) < Stamp(1, 0)


def test_a_digest_is_of_words_and_numbers() -> None:
    x = {"a": torch.zeros(3)}
    assert digest("w", x) == digest("w", {"a": torch.zeros(3)})
    assert digest("w", x) != digest("v", x) != digest("v", {"a": torch.ones(3)})


def test_a_mark_tells_what_was_asked_and_answered() -> None:
    def mark(base: Stamp, down: float = 0.0, up: float = 0.0, keep: int = 0) -> str:
        header = {"visit": {"round": 3, "base": list(base)}, "keep": [keep, 1]}
        request = Envelope("work", header, {"down": torch.full((2,), down)})
        return mark_of(digest_of(request), {"up.0": torch.full((2,), up)})

    base = Stamp(2, 1, "5" * 16)
    plain = mark(base)
    assert plain == mark(base, keep=1), "which states may be forgotten is no part of it"
    others = mark(Stamp(2, 1, "6" * 16)), mark(base, down=1.0), mark(base, up=1.0)
    assert len({plain, *others}) == 4


def test_the_state_store_returns_only_whole_files(tmp_path: Path) -> None:
    store = ClientStateStore(tmp_path / "s")
    for t in (1, 2, 3):
        store.put(Stamp(t, 1), {"state.c": torch.full((2,), float(t))}, {"request": "x"})
    assert [s.round for s in store.stamps()] == [1, 2, 3]
    store.keep([Stamp(2, 1), Stamp(3, 1)])
    assert store.get(Stamp(1, 1)) is None
    found, about = store.get(Stamp(2, 1)) or ({}, {})
    assert found["state.c"].tolist() == [2.0, 2.0] and about == {"request": "x"}
    (tmp_path / "s" / "notes-1.safetensors").write_text("another's")
    assert [s.round for s in store.stamps()] == [2, 3]
    path = next((tmp_path / "s").glob("00000003*"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])  # a disk that went bad
    assert store.get(Stamp(3, 1)) is None
    for bit in range(0, 8 * len(whole), 7):
        spoilt = bytearray(whole)
        spoilt[bit // 8] ^= 1 << bit % 8
        path.write_bytes(spoilt)
        assert store.get(Stamp(3, 1)) is None, f"bit {bit}"
    assert [(f.path, f.sound) for f in verify_states(tmp_path)] == [
        (path.with_stem("00000002-01"), True),
        (path, False),
    ]
    path.write_bytes(whole)
    assert store.get(Stamp(3, 1)) is not None


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({}, "needs run-dir"),
        ({"run-dir": ""}, "run-dir must be a path"),
        ({"run-dir": "r", "clints": "a"}, "did you mean 'clients'"),
        ({"run-dir": "r", "clients": "a,a"}, "different names"),
        ({"run-dir": "r", "wait": -1.0}, "wait must lie in"),
        ({"run-dir": "r", "bad-replies": 0}, "bad-replies must lie in"),
        ({"run-dir": "r", "norm-bound": -2.0}, "norm-bound must lie in"),
    ],
)
def test_wrong_settings_are_refused(words: dict[str, object], reason: str) -> None:
    with pytest.raises(ud.InvalidInput, match=reason):
        Deployment.of(words)


# the folder of an app


def test_deploy_init_writes_an_app_that_flower_can_build(undrift, tmp_path: Path) -> None:
    own = tmp_path / "mine.py"
    own.write_text("# a method of one's own would be here\n")
    described = (
        'rounds = 2\nuse = ["mine.py"]\nclients = {partition = "iid", number = 2}\n'
        "participation = {per_round = 1}\n[algorithms.fedavg]\n[algorithms.scaffold]\n"
    )
    (tmp_path / "e.toml").write_text(described)
    words = ("deploy", "init", "my-app", "--from", "e.toml", "--clients", "b,a")
    refused = undrift(*words)
    assert refused.code == 2 and "--method chooses among fedavg, scaffold" in refused.err
    done = undrift(*words, "--method", "scaffold", "--host", "fl.example.org")
    assert done.code == 0, done.err
    folder = tmp_path / "my-app"
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project["tool"]["flwr"]["app"]["config"]["clients"] == "a,b"
    made = read(folder / "app" / "experiment.toml")
    assert made.labels == ["scaffold"] and made.use == [str(folder / "app" / "mine.py")]
    page = (folder / "README.md").read_text()
    assert "--superlink fl.example.org:8443 --key keys/b" in page and "$" not in page.replace("$PWD", "")
    assert "undrift deploy superlink --host fl.example.org\n" in page and "0.0.0.0" not in page
    registered, started = page.index("supernode register"), page.index("undrift deploy node")
    assert registered < started, "a node whose key is not registered is turned away"
    build = [str(Path(sys.executable).parent / "flwr"), "build"]
    environment = {**os.environ, "FLWR_HOME": str(tmp_path / "home"), "FLWR_TELEMETRY_ENABLED": "0"}
    built = subprocess.run(build, cwd=folder, capture_output=True, text=True, env=environment)
    assert built.returncode == 0 and list(folder.glob("*.fab")), built.stdout + built.stderr


def test_deploy_init_refuses_what_cannot_work(tmp_path: Path) -> None:
    with pytest.raises(ud.InvalidInput, match="3 clients, 2 are named"):
        write_app(tmp_path / "a", experiment(), ("x", "y"), "h")
    with pytest.raises(ud.InvalidInput, match="letters, digits"):
        write_app(tmp_path / "a", experiment(), ("x", "y", "../z"), "h")
    with pytest.raises(ud.InvalidInput, match="names an app by its folder"):
        write_app(tmp_path / "my app", experiment(), (), "h")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ud.InvalidInput, match="not empty"):
        write_app(tmp_path / "full", experiment(), (), "h")


def test_keys_are_secret_and_never_written_over(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    write_certificates(keys, ["fl.example.org", "10.0.0.1"])
    write_node_key(keys / "a")
    for name in ("ca.key", "server.key", "a"):
        assert (keys / name).stat().st_mode & 0o077 == 0
    assert (keys / "a.pub").read_text().startswith("ecdsa-sha2-nistp384 ")
    context = ssl.create_default_context(cafile=str(keys / "ca.crt"))
    assert context.cert_store_stats()["x509_ca"] == 1
    ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(keys / "server.crt", keys / "server.key")
    for again in (lambda: write_certificates(keys, ["h"]), lambda: write_node_key(keys / "a")):
        with pytest.raises(ud.InvalidInput, match="there already"):
            again()


@pytest.mark.parametrize("name", ["scaffold", "scaffold-m", "scaffold-m-vr", "feddyn"])
def test_recount_leaves_a_server_as_it_is_when_nothing_was_lost(name: str) -> None:
    made = experiment(name)
    last, problem = simulated(made)[-1], federation(made, 0).problem
    weights = torch.tensor(problem.weights, dtype=torch.float32)
    mean = map_tensors(lambda t: weights @ t, last.state.clients.gather(range(3)))
    cohort = Cohort(4, 3, 3, 1.0, weights, 0 * weights, 0.1, 3.0)
    recounted = made.methods[name].make().recount(last.state.server, mean, cohort)
    for a, b in zip(tensors(recounted), tensors(last.state.server), strict=True):
        assert torch.allclose(a, b, atol=1e-6)
