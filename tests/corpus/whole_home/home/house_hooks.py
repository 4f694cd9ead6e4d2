"""Hooks: functions that are called when something happens in an agent. All of this file's run in every agent.

`orch hooks list` shows them with what they did, `orch hooks disable NAME` switches one off for good. A hook is called
with the event and a context; it returns nothing, event.patch(...) to change something, or a decision.
"""

from orch import Block, hook


# Decides: a call that it blocks does not run, and its reason is the result. When it fails, the call is blocked too.
@hook("tool_call")
def no_force_push(event, ctx) -> Block:
    if event.name == "bash" and "push --force" in event.input.get("command", ""):
        return Block("nobody pushes with --force here: ask for a pull request")


# Changes: only what it returns is kept and shown to the model. A lower priority is called first (50 unless said).
@hook("tool_result", priority=10, kind="transform")
def shorten(event, ctx):
    if event.name == "bash" and len(event.text) > 50_000:
        return event.patch(text=event.text[:25_000] + "\n[...]\n" + event.text[-25_000:])


# Observes: nobody waits for it. The log is that of the agent's process; ctx.state is this hook's own for as long as the
# process lives, ctx.turn_state until the turn ends.
@hook("turn_end")
def count(event, ctx):
    ctx.state["turns"] = ctx.state.get("turns", 0) + 1
    ctx.log(f"turn {ctx.state['turns']}: {event.tool_calls} calls, {event.usage.output_tokens} tokens")
