"""Fixtures of all tests. No test has a key, and the collected test items are excluded from garbage collection."""

from __future__ import annotations

import gc
import os
import pwd
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

SECRETS = ("_API_KEY", "_AUTH_TOKEN", "_CUSTOM_HEADERS")
"""The ends of the names of variables that contain keys of providers."""

# A shell ignores these signals in its background jobs, and `nohup` the last one. All processes would inherit this.
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# A busy machine is not a failure: time limits of Hypothesis measure wall-clock time.
settings.register_profile("orch", max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("orch")


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.endswith(SECRETS):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session", autouse=True)
def _empty_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use an empty home folder, so that results do not depend on the developer's credentials and settings."""
    home, find_user = str(tmp_path_factory.mktemp("home")), pwd.getpwuid

    def find_user_in_empty_home(uid: int) -> pwd.struct_passwd:
        user = find_user(uid)
        return pwd.struct_passwd((*user[:5], home, user.pw_shell)) if uid == os.getuid() else user

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", home)
        patch.setattr(pwd, "getpwuid", find_user_in_empty_home)
        yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Iterator[object]:
    """Exclude the collected items from garbage collection, because they use hundreds of megabytes until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
