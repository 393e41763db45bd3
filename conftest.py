"""Loads the plugin (an entry point of the distribution) and the Hypothesis profiles; decides nothing."""

from hypothesis import settings

from kernelpact import substrate

substrate.prepare()  # before anything imports Triton

settings.register_profile("default", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("thorough", max_examples=1000, deadline=None)
settings.load_profile("default")
