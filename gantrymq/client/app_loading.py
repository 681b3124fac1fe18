"""Find the :class:`App` of ``module:app``, as the command line names it."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path

from gantrymq.client.app import App
from gantrymq.client.errors import GantryError


def load_app(place: str) -> App:
    """The app at ``place``, ``module:name``, of the current folder or an installed package.

    Raises :class:`GantryError` that says what is wrong: no such module, an error while it is imported, no such app.
    """
    module_name, colon, name = place.partition(":")
    if not (colon and name and all(part.isidentifier() for part in module_name.split("."))):
        raise GantryError(f"{place!r} does not name an app: give module:name, as in shop.orders:app")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and (module_name == missing or module_name.startswith(f"{missing}.")):
            raise GantryError(f"there is no module {missing!r} in {folder} or among the installed ones") from error
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise GantryError(
            f"the import of {module_name} failed: {type(error).__name__}: {error} ({last.filename}, line {last.lineno})"
        ) from error
    found = getattr(module, name, None)
    if not isinstance(found, App):
        apps = [each for each, value in vars(module).items() if isinstance(value, App)]
        instead = f"did you mean {module_name}:{apps[0]}?" if apps else "make one with app = gantrymq.App(...)"
        what = "has no name" if found is None else f"has {type(found).__name__}, not gantrymq.App, as"
        raise GantryError(f"{module_name} {what} {name!r}: {instead}")
    return found
