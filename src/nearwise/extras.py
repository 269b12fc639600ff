"""Packages that not every use needs: which extra brings them."""

from importlib.util import find_spec


def require_extra(what: str, extra: str, *packages: str) -> None:
    """Refuse to go on without packages that an extra brings.

    Parameters
    ----------
    what : str
        What needs them, for the message.
    extra : str
        Name of the extra.
    *packages : str
        As they are imported.

    Raises
    ------
    ImportError
        If one of them is not installed.
    """
    if any(find_spec(package) is None for package in packages):
        raise ImportError(f'{what} needs the extra "{extra}": pip install nearwise[{extra}]')
