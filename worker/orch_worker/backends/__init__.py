"""What answers for an agent: one backend a module, all with the contract of `base`."""

from .registry import make_backend, template_for

__all__ = ["make_backend", "template_for"]
