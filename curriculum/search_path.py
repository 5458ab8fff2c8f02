"""Where Hydra looks for groups: a user's folder first, then `conf/`, then `phases/`.

Hydra's own `--config-dir` puts a user's folder last, which would let shipped plans hide edited
copies. Hydra instantiates search path plugins without arguments, so the user's folder reaches the
plugin through a context variable that holds for one composition.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

from curriculum.errors import UserError
from curriculum.library import folders

_active: ContextVar[list[Path]] = ContextVar("curriculum_folders", default=[])  # noqa: B039
_config_dir: ContextVar[Path | None] = ContextVar("curriculum_config_dir", default=None)


class LibrarySearchPath(SearchPathPlugin):
    """Adds the folders of the composition that is going on, and nothing to other applications."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Put them before everything else, first one first."""
        for folder in reversed(_active.get()):
            search_path.prepend(provider="curriculum", path=f"file://{folder}")


def config_dir() -> Path | None:
    """The user's folder, of the composition that is going on."""
    return _config_dir.get()


@contextmanager
def searching(folder: str | Path | None) -> Iterator[None]:
    """Compositions within find the library and the user's folder; `None` keeps an outer one."""
    own = config_dir() if folder is None else Path(folder).absolute()
    if own is not None and not own.is_dir():
        raise UserError(f"--config-dir {own}: no such folder")
    Plugins.instance().register(LibrarySearchPath)
    tokens = _config_dir.set(own), _active.set([f for f in folders(own) if f.is_dir()])
    try:
        yield
    finally:
        _config_dir.reset(tokens[0])
        _active.reset(tokens[1])
