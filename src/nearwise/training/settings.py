"""Settings that refuse what they do not know, with a hint."""

from typing import Any

from pydantic import BaseModel, ValidationError

from nearwise.names import did_you_mean


def refuse_unknown(values: Any, model: type[BaseModel], what: str) -> Any:
    """Return `values`, or raise ValueError naming the setting of `model` nearest to a strange one.

    Parameters
    ----------
    values : dict or other
        Only a dict is looked at.
    model : pydantic model
    what : str
        Kind of the settings, for the message.
    """
    known = list(model.model_fields)
    for name in values if isinstance(values, dict) else ():
        if name not in known:
            hint = did_you_mean(name, known) or f" Known settings: {', '.join(known)}."
            raise ValueError(f"Unknown {what} setting {str(name)!r}.{hint}")
    return values


def plain_message(error: ValueError) -> str:
    """Say what a pydantic error says, without its codes and links."""
    if not isinstance(error, ValidationError):
        return str(error)
    lines = []
    for part in error.errors():
        where = ".".join(map(str, part["loc"]))
        what = part["msg"].removeprefix("Value error, ")
        given = f" (got {part['input']!r})" if where else ""
        lines.append(f"{where}: {what}{given}" if where else what)
    return "; ".join(lines)
