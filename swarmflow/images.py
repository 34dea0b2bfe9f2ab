"""Images that swarmflow draws: their formats, and the mark by which it knows its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from swarmflow.errors import ConfigError
from swarmflow.ownership import check_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
_CREATOR_KEYS = {".png": "Software", ".svg": "Creator", ".pdf": "Creator"}


def check_image(path: Path, option: str, creator: str) -> None:
    """Check, before anything is computed, that an image can be made, and choose a backend that needs no window system.

    creator: the command that draws it. Raises ConfigError for another format or without matplotlib, ForeignFileError
    for an existing file that this command has not drawn.
    """
    if path.suffix not in FORMATS:
        raise ConfigError(f"{option} {path}: must end in {' or '.join(FORMATS)}")
    try:
        import matplotlib
    except ImportError as error:
        raise ConfigError(f"{option} needs matplotlib, which is not installed: pip install matplotlib") from error
    matplotlib.use("agg")
    check_file(path, option, lambda file: creator.encode() in file.read())


def save_image(figure: Figure, path: Path, creator: str) -> None:
    """Write an image with the mark of its creator, and close the figure. Raises ConfigError if it cannot be written."""
    from matplotlib import pyplot

    try:
        figure.savefig(path, metadata={_CREATOR_KEYS[path.suffix]: creator})
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
    finally:
        pyplot.close(figure)
