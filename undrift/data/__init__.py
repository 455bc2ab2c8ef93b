"""Data and how it is spread over clients."""
