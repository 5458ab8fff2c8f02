"""Functions that a user names by import path; the program gives keywords, the user kwargs."""

import importlib
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from curriculum.errors import UserError


def user_function(
    place: str,
    path: str,
    kwargs: Mapping[str, Any],
    *,
    keywords: Collection[str],
    given_by: str,
    example: str,
    colon: bool = False,
) -> Callable[..., Any]:
    """The function that `<place>.import_path` names; `colon` allows `package.module:function`.

    Raises `UserError` if it cannot be imported, or would not take `keywords`, which are `given_by`
    the program, and `<place>.kwargs`.
    """
    setting = f"{place}.import_path={path!r}"
    module, _, name = (path.replace(":", ".") if colon else path).rpartition(".")
    if not module:
        raise UserError(
            f"{setting}: no import path; give package.module.function (for example {example})"
        )
    try:
        function = getattr(importlib.import_module(module), name)
    except Exception as error:  # importing runs a user's code
        raise UserError(
            f"{setting}: cannot be imported ({type(error).__name__}: {error}); "
            "the module must lie in the working directory or on PYTHONPATH"
        ) from None
    if not callable(function):
        raise UserError(f"{setting}: names a {type(function).__name__}, not a function")
    if clash := sorted(set(keywords) & set(kwargs)):
        raise UserError(f"{place}.kwargs: {', '.join(clash)} is given by {given_by}; remove it")
    try:
        inspect.signature(function).bind(**dict.fromkeys(keywords), **kwargs)
    except TypeError as error:
        raise UserError(
            f"{setting}: cannot be called with {', '.join(keywords)} and "
            f"{place}.kwargs={kwargs} ({error})"
        ) from None
    except ValueError:  # a function without a signature: the first call will tell
        pass
    return function
