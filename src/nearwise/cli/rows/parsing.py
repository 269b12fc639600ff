"""Parsers of option values: ranges, lists, "auto" or a number."""

from collections.abc import Iterable

_LONGEST_RANGE = 10_000_000


def parse_numbers(option: str, text: str) -> list[int]:
    """Parse numbers such as "0-4", "0,2,7" or "0-2,9", in the given order, without repeats.

    ValueError if a part is neither a number nor a rising range of at most 10,000,000.
    """
    numbers: list[int] = []
    for part in split_list(text):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise ValueError(f"{option} {text!r}: {part!r} is not a number. Write 0-4, 0,2,7 or 3.")
        start, stop = int(first), int(last) if dash else int(first)
        if stop < start:
            raise ValueError(f"{option} {text!r}: {part!r} runs backwards. Write {stop}-{start}.")
        if stop - start >= _LONGEST_RANGE:
            raise ValueError(
                f"{option} {text!r}: {part!r} is a range of {stop - start + 1:,} numbers; at most "
                f"{_LONGEST_RANGE:,} are taken at once."
            )
        numbers += range(start, stop + 1)
    if not numbers:
        raise ValueError(f"{option} is empty. Write 0-4, 0,2,7 or 3.")
    return list(dict.fromkeys(numbers))


def spelled_numbers(numbers: Iterable[int]) -> str:
    """Write numbers as `parse_numbers` reads them, such as "0-4,9"; rising runs as ranges."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)


def split_list(text: str | Iterable[str] | None) -> list[str]:
    """Split one or several comma-separated texts into nonblank parts."""
    if text is None:
        return []
    texts = [text] if isinstance(text, str) else list(text)
    return [part.strip() for entry in texts for part in entry.split(",") if part.strip()]


def parse_count(option: str, text: str | None) -> int | str | None:
    """Parse a positive integer or "auto"; None for None."""
    if text is None or text == "auto":
        return text
    if not text.isdigit() or int(text) == 0:
        raise ValueError(f'{option} {text!r} is neither a positive integer nor "auto".')
    return int(text)


def parse_cv(option: str, text: str | None) -> int | float | str | None:
    """Parse a number of folds, a share in (0, 1) or "auto"; None for None."""
    if text is None or text == "auto":
        return text
    try:
        value = int(text) if text.isdigit() else float(text)
    except ValueError:
        value = 0
    if not (value >= 2 if isinstance(value, int) else 0 < value < 1):
        raise ValueError(
            f"{option} {text!r} is no number of folds (2 or more), no share of the rows to hold "
            'out (such as 0.1), and not "auto".'
        )
    return value


def parse_size(option: str, text: str | None) -> tuple[int, int] | None:
    """Parse a height and width such as "48x64", or the side of a square; None for None."""
    if text is None:
        return None
    sides = text.lower().split("x")
    if len(sides) > 2 or not all(side.isdecimal() and int(side) for side in sides):
        raise ValueError(f"{option} {text!r} is not a size in pixels. Write 64, or 48x64.")
    return int(sides[0]), int(sides[-1])


def parse_noise(option: str, text: str) -> str | float | None:
    """Parse a rate of wrong labels: "auto", "none" or a share in [0, 1)."""
    if text == "auto":
        return text
    if text == "none":
        return None
    try:
        rate = float(text)
    except ValueError:
        rate = -1.0
    if not 0 <= rate < 1:
        raise ValueError(
            f"{option} {text} is not a share of wrong labels: auto, none or in [0, 1)."
        )
    return rate


def parse_levels(option: str, text: str) -> list[float]:
    """Parse levels of quantiles, such as ".05,.5,.95"."""
    try:
        return [float(part) for part in split_list(text)]
    except ValueError:
        raise ValueError(f"{option} {text} are no levels. Write numbers: .05,.5,.95.") from None
