"""How tests are dealt to workers."""

import pytest


@pytest.mark.xdist_group("workers")
def test_the_tests_of_a_group_stay_together(request: pytest.FixtureRequest) -> None:
    """Else each worker starts its own cluster, browser and SuperLink; with pytest 9.2 and pytest-xdist 3.8 it does."""
    if vars(request.config.option).get("loadgroup"):
        assert request.node.nodeid.endswith("@workers")
