"""For all tests: a busy machine is no finding of hypothesis."""

from hypothesis import settings

settings.register_profile("steadyhand", deadline=None)
settings.load_profile("steadyhand")
