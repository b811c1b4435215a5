"""Stands in for torchvision, which FedLab and fluke import and do not use on these workloads.

torchvision must be built for the very build of torch beside it; without it there is one thing less that can fail.
"""

import sys
from types import ModuleType


class _Anything(ModuleType):
    """A module in which every name is an empty class."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


for _name in ("datasets", "datasets.utils", "models", "transforms"):
    sys.modules[f"{__name__}.{_name}"] = _Anything(f"{__name__}.{_name}")
datasets, models, transforms = (sys.modules[f"{__name__}.{_name}"] for _name in ("datasets", "models", "transforms"))
