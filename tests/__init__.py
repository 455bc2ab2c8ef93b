import undrift  # noqa: F401 (before torch: OpenMP's threads then sleep while they wait for each other)
