"""The limit of the address space in errors."""

from __future__ import annotations

import resource

import pytest

from orch_worker.system import memory_limit
from orch_worker.system.memory_limit import address_space_limit, free_address_space, with_memory_limit
from orch_worker.system.threads import describe_exception


@pytest.mark.parametrize(
    ("limit_mib", "text", "expected"),
    [
        (200, "MemoryError", True),
        (200, "ImportError: libx.so: failed to map segment from shared object", True),
        (200, "RuntimeError: can't start new thread", True),
        (200, "OSError: [Errno 12] Cannot allocate memory", True),
        (200, "Resource temporarily unavailable (src/thread.cpp:241)", True),
        (200, "ValueError: 3", False),
        (30, "SystemError: error return without exception set", True),
        (None, "MemoryError", False),
    ],
)
def test_errors_name_the_limit_that_can_be_their_cause(
    monkeypatch: pytest.MonkeyPatch, limit_mib: int | None, text: str, expected: bool
) -> None:
    """Below 64 MiB any error can be a symptom. Without a limit, no error is."""
    monkeypatch.setattr(
        memory_limit, "address_space_limit", lambda: None if limit_mib is None else (limit_mib << 20) + 1
    )
    hint = f" (the address space of this process is limited to {limit_mib} MiB: raise the limit, for example with"
    found = with_memory_limit(text)
    assert found == (f"{text}{hint} `ulimit -v unlimited`)" if expected else text)
    assert with_memory_limit(found) == found


def test_descriptions_of_exceptions_name_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """This covers the errors of tools, hooks and imports."""
    monkeypatch.setattr(memory_limit, "address_space_limit", lambda: 300 << 20)
    assert "limited to 300 MiB" in describe_exception(RuntimeError("can't start new thread"))
    assert describe_exception(ValueError("3")) == "ValueError: 3"


def test_limit_is_that_of_the_process() -> None:
    """The free address space is less than the limit."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    assert address_space_limit() == (None if limit == resource.RLIM_INFINITY else limit)
    free = free_address_space()
    assert (free is None) == (limit == resource.RLIM_INFINITY)
