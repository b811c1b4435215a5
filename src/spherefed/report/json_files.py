"""Read the JSON files of a run; a damaged file is a RunError that names the file and the line."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from spherefed.errors import RunError
from spherefed.files import parse_json

T = TypeVar("T")


def read_json_file(path: Path, parse: Callable[[Any], T]) -> T:
    """The parsed content of a file."""
    try:
        plain = parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is missing or damaged: {error}") from error
    return _parse(str(path), plain, parse)


def read_json_lines(path: Path, parse: Callable[[Any], T]) -> list[T]:
    """Every line, parsed; an incomplete last line, left by a crash or still being written, is ignored."""
    try:
        *lines, last = path.read_bytes().split(b"\n")
    except OSError as error:
        raise RunError(f"{path} is missing or damaged: {error}") from error
    parsed: list[T] = []
    for number, line in enumerate(lines, start=1):
        try:
            plain = parse_json(line)
        except ValueError as error:
            raise RunError(f"{path}, line {number} is damaged: {error}") from error
        parsed.append(_parse(f"{path}, line {number}", plain, parse))
    with suppress(ValueError):
        parsed.append(_parse(f"{path}, line {len(lines) + 1}", parse_json(last), parse))
    return parsed


def _parse(location: str, plain: Any, parse: Callable[[Any], T]) -> T:
    try:
        return parse(plain)
    except KeyError as error:
        raise RunError(f"{location} is damaged: {error} is missing") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{location} is damaged: {error}") from error
