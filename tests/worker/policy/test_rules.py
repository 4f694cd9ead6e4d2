"""The policy: what each source says of a call, and that the most restrictive one counts."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_protocol.policy.policy import (
    DANGEROUS,
    EXIT_PLAN,
    RANK,
    TASK_CREATE,
    Approval,
    Channel,
    DataClass,
    Operation,
    PolicyConfig,
    PolicySpec,
    Verdict,
)
from orch_worker.policy.path_rules import APART, TEXT
from orch_worker.policy.rules import (
    CREDENTIALS,
    OPERATIONS,
    TENSOR,
    JudgedCall,
    NamedPath,
    ResolvedRules,
    judge,
    passed_over,
    strictest,
    under,
    within,
)
from orch_worker.tools.dispatch.presets import BUILTIN, load

APPROVALS = get_args(Approval)
verdicts = st.lists(
    st.builds(Verdict, st.sampled_from(APPROVALS), st.sampled_from(("any", "local")), st.text("ab", max_size=3)),
    max_size=6,
)


def grounds(channel: Channel = "api", **rules: object) -> ResolvedRules:
    """Return rules for a user whose home is /h, with paths that are no links."""
    config = PolicyConfig(**rules)  # type: ignore[arg-type]

    def whole(paths: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(path.replace("~", "/h") for path in paths)

    return ResolvedRules(
        PolicySpec(channel, config),
        whole(CREDENTIALS),
        whole(config.denied_paths),
        None if config.allowed_paths is None else whole(config.allowed_paths),
        whole(config.personal_paths),
        whole(config.code_paths),
        frozenset(whole((*CREDENTIALS, *config.denied_paths))),
    )


def call(tool: str, *paths: str, personal: bool = False) -> JudgedCall:
    """Return a call that names `paths`."""
    return JudgedCall(tool, tuple(NamedPath(path, path) for path in paths), personal)


EXPECTED: dict[tuple[Channel, DataClass], str] = {
    ("api", "personal"): "allow allow allow",
    ("api", "code"): "allow allow allow",
    ("api", "random"): "allow allow allow",
    ("cli", "personal"): "ask ask ask",
    ("cli", "code"): "allow ask ask",
    ("cli", "random"): "allow allow allow",
}
PLACES: dict[DataClass, str] = {"personal": "/h/Documents/a", "code": "/h/src/a", "random": "/w/a"}
TOOLS: dict[Operation, str] = {"read": "read_file", "write": "write_file", "exec": "bash"}


@pytest.mark.parametrize("channel", get_args(Channel))
@pytest.mark.parametrize("data", get_args(DataClass))
@pytest.mark.parametrize("operation", get_args(Operation))
def test_tensor(channel: Channel, data: DataClass, operation: Operation) -> None:
    """Each channel, class of data and operation has its approval, as the page on policy has it."""
    expected = EXPECTED[channel, data].split()[get_args(Operation).index(operation)]
    verdict = judge(call(TOOLS[operation], PLACES[data]), grounds(channel, approval_mode="allow"))
    assert (verdict.approval, verdict.data) == (expected, data)


def test_tensor_has_no_gap_and_no_class_relaxes() -> None:
    """Every cell is there, and data of a more private class is never treated more mildly."""
    for channel, operation in product(get_args(Channel), get_args(Operation)):
        ranks = [RANK[TENSOR[channel, data][operation]] for data in ("random", "code", "personal")]
        assert ranks == sorted(ranks)


def test_every_built_in_tool_has_an_operation() -> None:
    """No built-in tool is judged as an unknown one, and no table names a tool or an argument that is not there."""
    assert OPERATIONS.keys() == BUILTIN.keys()
    assert set(BUILTIN) >= APART | TEXT.keys() | set(DANGEROUS)
    for name, arguments in TEXT.items():
        tool = next(tool for tool in load([name]) if tool.name == name)
        assert set(tool.input_schema["properties"]) >= arguments


@pytest.mark.parametrize("tool", [*BUILTIN, "mystery"])
@pytest.mark.parametrize("approval", [None, *APPROVALS])
def test_nothing_configured_lets_an_agent_in_plan_mode_write_or_run(tool: str, approval: Approval | None) -> None:
    """Whatever permissions say, what writes, runs or is not known is denied; the plan is asked about or denied."""
    permissions = {tool: approval} if approval is not None else {}
    verdict = judge(JudgedCall(tool, planning=True), grounds(permissions=permissions, approval_mode="allow"))
    operation = OPERATIONS.get(tool, "exec")
    least = "ask" if tool == EXIT_PLAN else "allow" if operation == "read" else "deny"
    configured = approval or ("ask" if tool == TASK_CREATE else "allow")
    assert verdict.approval == max(least, configured, key=RANK.__getitem__)


def test_tasks_are_asked_about_unless_somebody_said_otherwise() -> None:
    """Making a list needs approval also in a program; permissions count for it, and updating it needs none."""
    for channel in get_args(Channel):
        assert judge(call("task_create"), grounds(channel)).approval == "ask"
        assert judge(call("task_create"), grounds(channel, permissions={"task_create": "allow"})).approval == "allow"
        assert judge(call("task_update"), grounds(channel)).approval == "allow"


def test_plan_mode_denies_what_is_asked_about_without_it() -> None:
    """A write to a credential path is asked about, and in plan mode denied: no source stands before another."""
    assert judge(call("write_file", "/h/.ssh/id"), grounds()).approval == "ask"
    planning = JudgedCall("write_file", (NamedPath("/h/.ssh/id", "/h/.ssh/id"),), planning=True)
    assert judge(planning, grounds()).approval == "deny"
    assert judge(JudgedCall("kill_subagent", planning=True), grounds()).approval == "deny"


def test_unknown_tool_counts_as_running_code() -> None:
    """A tool that nobody classified is treated as the worst it could be."""
    assert judge(call("mystery", "/h/src/a"), grounds("cli")).approval == "ask"
    assert judge(call("read_file", "/h/src/a"), grounds("cli")).approval == "allow"


@given(verdicts)
def test_the_most_restrictive_verdict_wins(found: list[Verdict]) -> None:
    """All sources together are as strict as the strictest; any `local` stays; the reasons are the winners'."""
    together = strictest(found)
    assert RANK[together.approval] == max([RANK[each.approval] for each in found], default=0)
    assert (together.model == "local") == any(each.model == "local" for each in found)
    winners = [each.reason for each in found if each.approval == together.approval]
    assert together.approval == "allow" or set(filter(None, together.reason.split("; "))) == set(filter(None, winners))


@given(verdicts, st.permutations(range(6)))
def test_the_order_of_sources_does_not_matter(found: list[Verdict], order: list[int]) -> None:
    """Sources have no precedence: in any order they come to the same approval."""
    shuffled = [found[place] for place in order if place < len(found)]
    assert (strictest(found).approval, strictest(found).model) == (
        strictest(shuffled).approval,
        strictest(shuffled).model,
    )


@given(
    st.sampled_from(["read_file", "bash", "write_file", "own"]),
    st.sampled_from(["/h/.ssh/id", "/h/Documents/x", "/h/src/x", "/w/x", "/w/no/x"]),
    st.sampled_from(get_args(Channel)),
    st.sampled_from(APPROVALS),
    st.sampled_from([None, *APPROVALS]),
)
def test_no_permission_makes_another_source_milder(
    tool: str, path: str, channel: Channel, permission: Approval, mode: Approval | None
) -> None:
    """Whatever is configured for a tool, what the paths and the channel demand stands."""
    strict = judge(call(tool, path), grounds(channel, approval_mode="allow", denied_paths=("/w/no",)))
    given_ = grounds(channel, approval_mode=mode, permissions={tool: permission}, denied_paths=("/w/no",))
    verdict = judge(call(tool, path), given_)
    assert RANK[verdict.approval] == max(RANK[strict.approval], RANK[permission])


@pytest.mark.parametrize("path", [path.replace("~", "/h") for path in CREDENTIALS])
@pytest.mark.parametrize("channel", get_args(Channel))
def test_credentials_are_asked_about_everywhere(channel: Channel, path: str) -> None:
    """A path that holds credentials is asked about, for every channel and tool, and is for local models."""
    for tool in ("read_file", "bash", "own"):
        verdict = judge(call(tool, f"{path}/x"), grounds(channel, permissions={tool: "allow"}))
        assert (verdict.approval, verdict.model) == ("ask", "local")
        assert f"{path}/x holds credentials" in verdict.reason


def test_names_that_only_begin_alike_are_apart() -> None:
    """A path is compared part by part: ~/Documents2 is not in ~/Documents, nor ~/.sshx in ~/.ssh."""
    verdict = judge(call("read_file", "/h/Documents2/a", "/h/.sshx/id"), grounds("cli"))
    assert (verdict.approval, verdict.data) == ("allow", "random")


def test_wildcards_in_a_call_count_as_what_they_may_mean() -> None:
    """A command's wildcard that could reach credentials is asked about."""
    assert judge(call("bash", "/h/.s*/id"), grounds()).approval == "ask"
    assert judge(call("bash", "/h/x*/id"), grounds()).approval == "allow"


def test_denied_beats_allowed() -> None:
    """What is denied is denied inside an allowed folder too; what is outside of it is denied; inside it may run."""
    rules = grounds(allowed_paths=("/w",), denied_paths=("/w/secret", "*.pem"))
    found = [judge(call("bash", path), rules).approval for path in ("/w/a", "/w/secret/a", "/w/k.pem", "/v", "/wx")]
    assert found == ["allow", "deny", "deny", "deny", "deny"]


def test_a_link_is_judged_by_where_it_leads_and_by_its_name() -> None:
    """Either spelling of a path is enough to be denied, and only what really lies in an allowed folder is allowed."""
    rules = grounds(denied_paths=("/w/no",), allowed_paths=("/w",))
    for place in (NamedPath("/w/link", "/w/no/x"), NamedPath("/w/no/link", "/w/x"), NamedPath("/w/link", "/etc/x")):
        assert judge(JudgedCall("read_file", (place,)), rules).approval == "deny"


def test_search_from_above_is_a_search_of_it() -> None:
    """A tool that goes down into folders is held to what lies below the folder it begins in."""
    home, elsewhere = NamedPath("/h", "/h"), NamedPath("/w", "/w")
    assert judge(JudgedCall("list_files", (home,), start=home), grounds()).approval == "ask"
    assert judge(JudgedCall("list_files", (home, elsewhere), start=elsewhere), grounds()).approval == "allow"
    assert judge(call("read_file", "/h"), grounds()).approval == "allow"


def test_what_nobody_was_asked_about_is_passed_over() -> None:
    """Below where a call begins, and elsewhere nothing is; of what was judged before, and approved, nothing either."""
    rules = grounds("cli", denied_paths=("/w/no", "*.pem", "/v/no"), personal_paths=("/w/mine",))
    home, work, mine = NamedPath("/h", "/h"), NamedPath("/w", "/w"), NamedPath("/w/mine", "/w/mine")
    assert passed_over(rules, JudgedCall("grep_files", (work,), start=work), "/w") == ("/w/no", "*.pem", "/w/mine")
    assert passed_over(rules, JudgedCall("grep_files", (mine,), start=mine), "/w/mine") == ("*.pem",)
    assert "/h/.ssh" in passed_over(rules, JudgedCall("git_diff", (home,)), "/h")
    assert "/h/.ssh" not in passed_over(rules, JudgedCall("grep_files", (home,), start=home), "/h")


def test_personal_data_stays_personal() -> None:
    """After personal data was touched, a call that touches none is judged as if it did."""
    assert judge(call("bash", "/w/a", personal=True), grounds("cli", approval_mode="allow")).approval == "ask"


@pytest.mark.parametrize(
    ("channel", "mode", "expected"),
    [
        ("cli", None, "ask"),
        ("api", None, "allow"),
        ("api", "ask", "ask"),
        ("cli", "deny", "deny"),
        ("cli", "allow", "allow"),
    ],
)
def test_dangerous_tools_follow_the_approval_mode(channel: Channel, mode: Approval | None, expected: Approval) -> None:
    """A dangerous tool is asked about on the command line and runs for a program, unless a mode is set."""
    rules = grounds(channel, approval_mode=mode)
    assert judge(call("bash", "/w/a"), rules).approval == expected
    assert judge(call("read_file", "/w/a"), rules).approval == "allow"


def test_a_permission_replaces_the_mode() -> None:
    """What is said of a tool by name counts for it instead of the mode."""
    rules = grounds("cli", permissions={"bash": "allow", "read_file": "deny"})
    assert [judge(call(tool, "/w/a"), rules).approval for tool in ("bash", "read_file", "write_file")] == [
        "allow",
        "deny",
        "ask",
    ]


def test_the_reason_names_path_and_rule() -> None:
    """A reason says which path met which rule, so that it can be looked up."""
    verdict = judge(call("bash", "/w/no/x"), grounds("cli", denied_paths=("/w/no",)))
    assert verdict.reason == "/w/no/x is denied by denied_paths (/w/no)"


@given(
    st.lists(
        st.sampled_from(["*.k", "[ab]?", "a", "/", "/a", "/a/b", "/*/b", "/a/*.k", "/*/*/a", "/a/b/a/b"]), max_size=4
    ),
    st.lists(st.lists(st.sampled_from(["a", "b", "ab", "x.k"]), min_size=1, max_size=4), max_size=4),
)
def test_many_files_fall_under_the_rules_that_each_does(rules: list[str], paths: list[list[str]]) -> None:
    """Whichever was asked about before."""
    says = under(rules)
    for parts in paths:
        path = "/" + "/".join(parts)
        assert says(path) == any(within(path, rule) for rule in rules)
