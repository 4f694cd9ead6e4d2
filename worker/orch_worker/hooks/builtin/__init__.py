"""The hooks that come with orch, one a module."""
