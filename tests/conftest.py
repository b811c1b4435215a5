"""Settings for all tests."""

from hypothesis import settings

# How long an example takes says more about the machine's other work than about the code.
settings.register_profile("spherefed", deadline=None)
settings.load_profile("spherefed")
