"""Hooks that come with orch. Each is off until `hooks.load` names it."""
