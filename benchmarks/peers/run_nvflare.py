"""NVFlare: its FedAvg job on its simulator, with a process of one torch thread for every client.

That is its default; with fewer processes it makes every client anew for every round, which is slower still.  Differs in
its favour: the federation has only as many clients as take part in a round, since each is a process whether it takes
part or not.  W3 would need 50 of them, more memory than the other rows together, so it is not measured.  Local training is the user's (`shared.train`): an epoch in random order; the last
batch of W4 has 52 samples in place of 64.  The server saves its model after every round, as its job does unless told
to stop early.  Its SCAFFOLD leaves the clients' part to the user, so W5 is not measured.
"""
# pyright: reportMissingImports=false

from pathlib import Path

from nvflare.app_opt.pt.job_config.fed_avg import FedAvgJob
from nvflare.job_config.script_runner import ScriptRunner

from benchmarks.peers.nvflare_parts import Model, Turns
from benchmarks.peers.turns import work

CLIENT = Path(__file__).parent / "nvflare_client.py"


def main() -> None:
    w = work()
    job = FedAvgJob(initial_model=Model(w.name), n_clients=w.cohort, num_rounds=10**6)
    job.to_server(Turns(), id="turns")
    for i in range(w.cohort):
        job.to(ScriptRunner(script=str(CLIENT)), f"site-{i + 1}")
    job.simulator_run("workspace")


if __name__ == "__main__":
    main()
