"""Recipes: a paper's experiments, searched, run and checked against what the paper claims.

A recipe is a folder with `recipe.toml` (what to search and to run), the experiments and spaces it names, and
`expected.json` (the claims, and what was measured when it was recorded).  A new recipe needs a folder and no code.
"""
