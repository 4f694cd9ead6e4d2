"""CLI verbs and slash commands that pass their arguments to a service and print the service's result.

Verbs belong to the definition of the service (`Service.verbs`). This module has no imports, because `orch` loads it at
each start. An option that is not given has the default of the service's parameter.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Final, Literal

    Kind = Literal["agent", "entry", "flag", "json", "model", "text", "tools", "word"]

__all__ = ["VERBS", "Slash", "Verb", "VerbArgument", "flag", "nested", "option"]


class VerbArgument:
    """An argument of a verb. The argument is positional, or `--name` if `option` is True.

    - `field`: the field of the service's parameters that the argument sets. "change.label" is the field `label` in
      `change`.
    - `kind`: the type of the value. `text` and `json` may be `-` on the command line, which means standard input.
      `tools` are names separated by commas. A `flag` sets the field to `default`, which is True.
    - `many`: the argument may be repeated, and sets a tuple. A slash command takes one value.
    - `default`: the value if the option is not given. None means the field's default.
    """

    def __init__(
        self,
        field: str,
        help: str,
        kind: Kind = "word",
        *,
        name: str = "",
        option: bool = False,
        required: bool = True,
        many: bool = False,
        default: Any = None,
        slash: bool = True,
    ) -> None:
        self.field = field
        self.help = help
        self.kind = kind
        self.name = name or field.rpartition(".")[2]
        self.option = option
        self.required = required
        self.many = many
        self.default = default
        self.slash = slash


class Slash:
    """The slash command of a verb. Braces in `output_template` contain fields of the result.

    If `acts_on_session` is True, the command acts on the agent of the session. Otherwise the agent is an argument.
    """

    def __init__(self, name: str, group: str, output_template: str, *, acts_on_session: bool = False) -> None:
        self.name = name
        self.group = group
        self.output_template = output_template
        self.acts_on_session = acts_on_session


class Verb:
    """A CLI verb, `orch WORDS`, and optionally a slash command.

    - `fixed`: fields of the parameters that the verb itself sets.
    - `any_of`: fields of which at least one must be given.
    - `prints`: fields of the result to print. Items of a list are printed on separate lines. For a list of results, the
      fields are the columns of a table. With `--json`, the whole result is printed.
    """

    def __init__(
        self,
        words: str,
        summary: str,
        example: str,
        *arguments: VerbArgument,
        description: str = "",
        prints: tuple[str, ...] = (),
        fixed: Mapping[str, Any] | None = None,
        any_of: tuple[str, ...] = (),
        slash: Slash | None = None,
    ) -> None:
        self.words = words
        self.summary = summary
        self.example = example
        self.arguments = arguments
        self.description = description or f"{summary[:1].upper()}{summary[1:]}."
        self.prints = prints
        self.fixed = fixed or {}
        self.any_of = any_of
        self.slash = slash


def flag(field: str, help: str, *, name: str = "", value: bool = True, slash: bool = True) -> VerbArgument:
    """Return an argument `--name` that sets `field` to `value`."""
    return VerbArgument(field, help, "flag", name=name, option=True, required=False, default=value, slash=slash)


def option(
    field: str, help: str, kind: Kind = "word", *, name: str = "", required: bool = False, default: Any = None
) -> VerbArgument:
    """Return an argument `--name VALUE`."""
    return VerbArgument(field, help, kind, name=name, option=True, required=required, default=default)


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters from `values`, which maps field names to values.

    The key "change.label" is the field `label` in `change`.
    """
    params: dict[str, Any] = {}
    for field, value in values.items():
        *above, last = field.split(".")
        inner = params
        for each in above:
            inner = inner.setdefault(each, {})
        inner[last] = value
    return params


REF: Final = VerbArgument("ref", "number, id, unique prefix of an id, or name of an agent; or latest", "agent")
KEY: Final = VerbArgument(
    "ref", "number, id, unique prefix of an id, or name of an agent; or latest", "agent", name="key"
)
SUMMARY: Final = option("change.summary", "what to tell the model about the branch that it leaves; - is stdin", "text")
SUMMARIZE: Final = flag("change.summarize", "let the model write that summary")
OBJECTS: Final = "name of an object, or the part behind its colon"


def _entry(field: str, help: str) -> VerbArgument:
    return VerbArgument(field, f"{help}: id, unique prefix of an id, label, turn:N, or root", "entry", name="entry")


VERBS: Final[dict[str, tuple[Verb, ...]]] = {
    "kill": (
        Verb(
            "kill",
            "end agents and all agents below them; their transcripts stay",
            "orch kill --all --dry-run",
            VerbArgument("refs", "agents to kill", "agent", name="ref", many=True, required=False),
            flag("all", "kill every agent", slash=False),
            flag("dry_run", "print which agents would be killed, and kill none", slash=False),
            prints=("ids",),
            any_of=("refs", "all"),
            slash=Slash("kill", "agents", "killed: {ids}"),
        ),
    ),
    "steer": (
        Verb(
            "steer",
            "send a message to a running agent",
            'orch steer 1 "Leave the tests alone"',
            REF,
            VerbArgument("text", "the message; - reads it from stdin", "text"),
            flag(
                "follow_up",
                "deliver the message when the agent would stop; an idle agent receives it as a query",
                slash=False,
            ),
            description="Send a message to a running agent, which reads it before its next step. Prints the id.",
            prints=("steer_id", "query_id"),
            slash=Slash("steer", "agents", "sent"),
        ),
    ),
    "revoke_tools": (
        Verb(
            "revoke-tools",
            "revoke tools of an agent and of all agents below it, for good",
            "orch revoke-tools 1 --keep read_file,git",
            REF,
            option(
                "keep", "names or categories of the tools that the agent keeps; '' for none", "tools", required=True
            ),
            description="Revoke all tools of an agent and its subagents, except some. Prints the remaining tools.",
            prints=("tools",),
            slash=Slash("revoke-tools", "agent", "tools: {tools}", acts_on_session=True),
        ),
    ),
    "merge": (
        Verb(
            "merge",
            "merge the worktree of an agent into the branch that it was spawned from",
            "orch merge 1 --dry-run",
            REF,
            flag("dry_run", "report files, commits and conflicts, and merge nothing"),
            description="Merge the worktree of an agent. Conflicts and uncommitted changes are refused.",
            prints=("text",),
            slash=Slash("merge", "agents", "{text}"),
        ),
    ),
    "change_session": (
        Verb(
            "session checkout",
            "continue the conversation after another entry; the current branch stays",
            "orch session checkout reader 1f22a6cc",
            KEY,
            _entry("change.to", "the entry to continue after"),
            SUMMARY,
            SUMMARIZE,
            fixed={"change.type": "move"},
            slash=Slash("checkout", "session", "the conversation continues there", acts_on_session=True),
        ),
        Verb(
            "session branch",
            "return to the position before a prompt, and print the prompt, so that you can change it and ask again",
            "orch session branch reader 1f22a6cc",
            KEY,
            _entry("change.to", "the prompt to ask again"),
            SUMMARY,
            SUMMARIZE,
            fixed={"change.type": "move", "ask_anew": True},
            prints=("text",),
        ),
        Verb(
            "session label",
            "set or remove the label of an entry",
            "orch session label reader 1f22a6cc start",
            KEY,
            _entry("change.target", "the entry to label"),
            VerbArgument("change.label", "the label; without one the label is removed", required=False),
            fixed={"change.type": "label"},
            slash=Slash("label", "session", "label changed", acts_on_session=True),
        ),
        Verb(
            "session title",
            "set or remove the title of a session",
            "orch session title reader pumps",
            KEY,
            VerbArgument("change.name", "the title; without one the title is removed", name="title", required=False),
            fixed={"change.type": "name"},
            slash=Slash("title", "session", "title changed", acts_on_session=True),
        ),
        Verb(
            "session model",
            "continue the conversation with another model",
            "orch session model reader local",
            KEY,
            VerbArgument("change.model", "PROVIDER:MODEL, or local; orch models lists them", "model"),
            fixed={"change.type": "model"},
            prints=("model",),
        ),
        Verb(
            "session thinking",
            "set the reasoning effort of a session",
            "orch session thinking reader high",
            KEY,
            VerbArgument("change.level", "off, minimal, low, medium, high, xhigh or max"),
            description="Set the reasoning effort. Prints the level in effect: the nearest that the model supports.",
            fixed={"change.type": "thinking"},
            prints=("thinking",),
        ),
        Verb(
            "session add-message",
            "add a message without starting a turn",
            "orch session add-message reader 'Valve 7 was replaced.'",
            KEY,
            VerbArgument("change.text", "the message, which the model reads with the next prompt; - is stdin", "text"),
            option("change.custom_type", "type of the message, for programs (note)", name="kind", default="note"),
            flag("change.display", "do not show it to people", name="hidden", value=False),
            description="Add a message without starting a turn. Prints the entry's id.",
            fixed={"change.type": "add_message"},
            prints=("entry",),
        ),
        Verb(
            "session meta set",
            "attach JSON metadata to a session",
            "orch session meta set reader progress '{\"page\": 7}'",
            KEY,
            VerbArgument("change.custom_type", "type of the metadata, to find it by", name="kind"),
            VerbArgument("change.data", "the metadata as JSON; - reads it from stdin", "json"),
            description="Attach JSON metadata to a session. It is not sent to the model. Prints the entry's id.",
            fixed={"change.type": "set_metadata"},
            prints=("entry",),
        ),
    ),
    "list_session_metadata": (
        Verb(
            "session meta get",
            "list the metadata of a session",
            "orch session meta get reader progress",
            KEY,
            VerbArgument("custom_type", "list only metadata of this type", name="kind", required=False),
            prints=("entry", "custom_type", "data"),
        ),
    ),
    "fork": (
        Verb(
            "session fork",
            "copy a session to a new agent",
            "orch session fork reader 1f22a6cc --name second",
            KEY,
            VerbArgument("at", "last entry or turn:N of the copy (the end)", "entry", name="entry", required=False),
            option("name", "name of the new agent"),
            option("model", "model of the new agent", "model"),
            description="Copy one path of a session, with its archives, to a new agent. Prints the agent's id.",
            prints=("id",),
        ),
    ),
    "change_workspace": (
        Verb(
            "workspace pin",
            "list objects first, and never drop them",
            "orch workspace pin latest value:frame",
            KEY,
            VerbArgument("pin", OBJECTS, name="name", many=True),
            prints=("pinned",),
        ),
        Verb(
            "workspace unpin",
            "undo pin",
            "orch workspace unpin latest value:frame",
            KEY,
            VerbArgument("unpin", OBJECTS, name="name", many=True),
            prints=("unpinned",),
        ),
    ),
}
"""The verbs of each service. Keys are names of services."""
