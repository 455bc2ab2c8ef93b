"""Experiments: what the commands are made of.  Each package imports only those above it.

config    one experiment in TOML or Python
runs      run directories, checkpoints, several runs at a time, loggers
report    from run directories to a page, tables and plots
comparison  ud.compare, ud.load_run, Experiment.run: the same from Python
sweeps    hyper-parameters chosen with equal budgets
recipes   a paper's experiments, checked against its claims
"""
