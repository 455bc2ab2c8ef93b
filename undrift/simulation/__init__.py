"""Federated rounds on one machine or a cluster.  Each module imports only those below it.

batched_runs/      many runs as one computation: ud.run_together
conformance.py     ud.check: what every method must do
references.py      training without a federation, to compare one with
api.py             ud.run and ud.rounds: everything is checked (checks.py), an engine chosen, the loop started
progress.py        bars on a terminal or in a notebook
asynchronous/      virtual time        ray/   workers on a cluster
driver.py          the loop of rounds, over any transport
transport.py       where clients are and how an exchange reaches them
engines/           ways of visiting clients in one process
privacy.py         the noisy sum that a private run releases, and its epsilon
aggregation.py     from clients' answers to the server's step
participants.py    the clients of one exchange, their weights and steps
results.py         Round, State, Result
client_states.py   client states between visits, staged and committed
participation.py   who takes part in a round
averages.py        means of a run's models
catalogue.py       what each method keeps, sends and computes, for `undrift list`
"""
