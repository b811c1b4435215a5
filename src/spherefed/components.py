"""A user's own components: Python objects that an experiment names as `package.module:Name`.

Every import of such an object goes through `find_component`. Modules are found on `sys.path` and in the current folder.
`only_components` restricts which names may be imported; a site of a federation uses it for experiments of a server.
"""

import difflib
import hashlib
import inspect
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import reduce
from importlib import import_module, invalidate_caches
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from types import ModuleType
from typing import Any

from spherefed.errors import ConfigError

Record = dict[str, str | None]
"""Where a component comes from: its `module`, `version`, `file`, and the `sha256` of that file."""

_ALLOWED: ContextVar[frozenset[str] | None] = ContextVar("allowed components", default=None)


def is_component_name(text: object) -> bool:
    """Whether a text has the form `package.module:Name`.

    >>> is_component_name("mynet:MyNet"), is_component_name("resnet18")
    (True, False)
    """
    return isinstance(text, str) and re.fullmatch(r"[^\W\d]\w*(\.\w+)*:[^\W\d]\w*(\.\w+)*", text) is not None


def component_name(value: Any) -> str:
    """`package.module:Name` of a class or function.

    >>> from collections import OrderedDict
    >>> component_name(OrderedDict)
    'collections:OrderedDict'
    """
    return f"{value.__module__}:{value.__qualname__}"


def find_component(name: str, path: str, expected: str) -> Any:
    """The object called `package.module:Name`; `path` and `expected` are for the error message."""
    allowed = _ALLOWED.get()
    if allowed is not None and name not in allowed:
        listed = ", ".join(sorted(allowed)) or "nothing"
        raise ConfigError(f"{path} {name!r} is not allowed here: site.toml lists {listed} under `allow`")
    module_name, _, attribute = name.partition(":")
    module = _import(module_name, f"{path} {name!r}", expected)
    try:
        return reduce(getattr, attribute.split("."), module)
    except AttributeError:
        where = getattr(module, "__file__", None) or "no file"
        close = difflib.get_close_matches(attribute, [each for each in vars(module) if not each.startswith("_")], n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigError(
            f"{path} {name!r}: module {module_name!r} ({where}) has no attribute {attribute!r}{hint}; "
            f"expected {expected}"
        ) from None


@contextmanager
def only_components(names: Collection[str]) -> Iterator[None]:
    """Within it, `find_component` refuses every name that is not listed."""
    token = _ALLOWED.set(frozenset(names))
    try:
        yield
    finally:
        _ALLOWED.reset(token)


def add_search_folders(folders: Iterable[str]) -> None:
    """Look for components in these folders too, after everything that is on `sys.path` already."""
    for folder in folders:
        if folder not in sys.path and Path(folder).is_dir():
            sys.path.append(folder)
            invalidate_caches()


def describe_components(names: Iterable[str]) -> dict[str, Record]:
    """Where each of these components comes from, for the files of a run."""
    return {name: _describe(name) for name in sorted(set(names))}


def changed_components(recorded: Mapping[str, Record], names: Iterable[str]) -> list[str]:
    """One line for each component whose source file is not the recorded one."""
    lines = []
    for name, now in describe_components(names).items():
        before = recorded.get(name)
        if before is not None and before["sha256"] != now["sha256"]:
            lines.append(
                f"{name}: {now['file']} has SHA-256 {_short(now['sha256'])}, recorded was "
                f"{_short(before['sha256'])} ({before['file']})"
            )
    return lines


def search_folders(records: Mapping[str, Record]) -> tuple[str, ...]:
    """The folders from which the top-level modules of these components are imported."""
    folders = []
    for record in records.values():
        if record["file"] is not None and record["module"] is not None:
            file, depth = Path(record["file"]), record["module"].count(".")
            folders.append(str(file.parents[depth + 1 if file.name == "__init__.py" else depth]))
    return tuple(dict.fromkeys(folders))


def _import(name: str, what: str, expected: str) -> ModuleType:
    here = str(Path.cwd())
    add_search_folders([here])
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigError(
                f"{what}: there is no module {error.name!r} on the Python path or in {here}; expected {expected}; "
                "run from the folder that holds it, or add that folder to PYTHONPATH"
            ) from None
        raise ConfigError(f"{what}: module {name!r} needs {error.name!r}, which is not installed") from error
    except Exception as error:
        raise ConfigError(f"{what}: module {name!r} cannot be imported: {type(error).__name__}: {error}") from error


def _describe(name: str) -> Record:
    value = find_component(name, "component", "an object that can be imported")
    # The file that defines the object, which need not be the module that it is imported from.
    module_name = getattr(value, "__module__", None) or name.partition(":")[0]
    module = sys.modules.get(module_name)
    try:
        file = None if module is None else inspect.getsourcefile(module)
    except TypeError:  # a module without a file, such as that of a notebook
        file = None
    exists = file is not None and Path(file).is_file()
    digest = hashlib.sha256(Path(str(file)).read_bytes()).hexdigest() if exists else None
    return {"module": module_name, "version": _version(module_name), "file": file, "sha256": digest}


def _version(module: str) -> str | None:
    """The version of the installed distribution, or the module's own `__version__`."""
    top = module.partition(".")[0]
    for distribution in packages_distributions().get(top, ()):
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    found = getattr(sys.modules.get(top), "__version__", None)
    return found if isinstance(found, str) else None


def _short(digest: str | None) -> str:
    return "none" if digest is None else f"{digest[:12]}…"


def expected_component(contract: Any, adapter: Any) -> str:
    """In words: what a component of this contract has to be."""
    parts = []
    for name in required_members(contract):
        member = inspect.getattr_static(contract, name)
        if inspect.isfunction(member):
            parts.append(f"{name}({', '.join([*inspect.signature(member).parameters][1:])})")
        else:
            parts.append(name)
    text = f"a frozen dataclass with {', '.join(parts)}"
    return text if adapter is None else f"{text}, or {adapter.expected}"


def required_members(contract: Any) -> list[str]:
    """The methods and properties of a Protocol."""
    members = vars(contract).items()
    return [
        name
        for name, member in members
        if (name == "__call__" or not name.startswith("_")) and (inspect.isfunction(member) or type(member) is property)
    ]


def has_member(found: Any, name: str) -> bool:
    """Whether instances of a class have this method, property or field; every class itself can be called."""
    own = found.__mro__ if isinstance(found, type) else ()
    return any(name in vars(each) or name in vars(each).get("__annotations__", ()) for each in own)
