"""Recipes: a paper's experiments, searched, run and held against what the paper claims.

A recipe is a folder with `recipe.toml` (what to search and to run), the experiments and spaces it names, and
`expected.json` (the claims, and what came out when it was recorded).  A new recipe needs a folder and no code.
"""

from undrift.experiments.recipes.claims import Claim, Finding, findings, read_claims
from undrift.experiments.recipes.recipe import Recipe, find_recipe, read_recipe, recipes_there

__all__ = [
    "Claim",
    "Finding",
    "Recipe",
    "find_recipe",
    "findings",
    "read_claims",
    "read_recipe",
    "recipes_there",
]
