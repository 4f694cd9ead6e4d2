"""A temporary folder for the files of matplotlib."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def drawing_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give matplotlib a temporary folder for its files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MPLCONFIGDIR", str(tmp_path_factory.mktemp("matplotlib")))
        yield
