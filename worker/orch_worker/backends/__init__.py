"""Model backends, one per module. Every backend implements the protocol in `base`."""

from .registry import make_backend, template_for

__all__ = ["make_backend", "template_for"]
