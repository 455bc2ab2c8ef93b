"""Recipes: a paper's experiments, searched, run and checked against what the paper claims.

A recipe is a folder with `recipe.toml` (what to search, what to run, what is claimed), the experiments and spaces it
names, `results.json` (what came out when it was recorded) and `README.md`.  A recipe of experiments needs no code; one about
quadratics and closed forms has functions that return numbers.

recipe.py    what a recipe says, and where recipes are
claims.py    claims measured seed by seed, and whether they hold
results.py   what was recorded, and whether it is still of this recipe
page.py      all recorded results as one page
picture.py   recorded claims as a picture
"""
