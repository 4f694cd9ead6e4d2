"""The policy: the verdict of each source, and the rule that the strictest verdict applies."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_protocol.core.taint import Bit
from orch_protocol.policy.builtin_tools import BUILTIN_TOOLS, Operation, facts_of
from orch_protocol.policy.policy import (
    EXIT_PLAN,
    RANK,
    TASK_CREATE,
    Approval,
    Channel,
    DataClass,
    PolicyConfig,
    PolicySpec,
    Verdict,
)
from orch_worker.policy.evaluate import evaluate
from orch_worker.policy.rules import (
    APPROVALS,
    CREDENTIALS,
    JudgedCall,
    NamedPath,
    ResolvedRules,
    judge,
    path_matcher,
    path_matches,
    rules_below,
    skipped_rules,
    strictest,
)

ALL_APPROVALS = get_args(Approval)
verdicts = st.lists(
    st.builds(Verdict, st.sampled_from(ALL_APPROVALS), st.sampled_from(("any", "local")), st.text("ab", max_size=3)),
    max_size=6,
)


def grounds(channel: Channel = "api", **rules: object) -> ResolvedRules:
    """Return rules for a user with the home /h. No path of the rules is a link."""
    config = PolicyConfig(**rules)  # type: ignore[arg-type]

    def whole(paths: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(path.replace("~", "/h") for path in paths)

    return ResolvedRules(
        PolicySpec(channel, config),
        whole(CREDENTIALS),
        whole(config.usable_credentials),
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
    ("person", "personal"): "ask ask ask",
    ("person", "code"): "allow ask ask",
    ("person", "random"): "allow allow allow",
    ("cli", "personal"): "ask ask ask",
    ("cli", "code"): "allow ask ask",
    ("cli", "random"): "allow allow allow",
}
PLACES: dict[DataClass, str] = {"personal": "/h/Documents/a", "code": "/h/src/a", "random": "/w/a"}
TOOLS: dict[Operation, str] = {"read": "read_file", "write": "write_file", "exec": "bash"}


@pytest.mark.parametrize("channel", get_args(Channel))
@pytest.mark.parametrize("data", get_args(DataClass))
@pytest.mark.parametrize("operation", get_args(Operation))
def test_each_channel_class_and_operation_has_its_documented_approval(
    channel: Channel, data: DataClass, operation: Operation
) -> None:
    """The approvals are those in the table on the policy page."""
    expected = EXPECTED[channel, data].split()[get_args(Operation).index(operation)]
    verdict = judge(call(TOOLS[operation], PLACES[data]), grounds(channel, approval_mode="allow"))
    assert (verdict.approval, verdict.data) == (expected, data)


def test_approval_table_is_complete_and_monotonic() -> None:
    """The approval for a more private class of data is never less strict."""
    for channel, operation in product(get_args(Channel), get_args(Operation)):
        ranks = [RANK[APPROVALS[channel, data][operation]] for data in ("random", "code", "personal")]
        assert ranks == sorted(ranks)


@pytest.mark.parametrize("tool", [*BUILTIN_TOOLS, "mystery"])
@pytest.mark.parametrize("approval", [None, *ALL_APPROVALS])
def test_plan_mode_denies_writes_and_commands_under_any_configuration(tool: str, approval: Approval | None) -> None:
    """In plan mode, the plan itself needs at least an approval, and a permission can make reading stricter."""
    permissions = {tool: approval} if approval is not None else {}
    verdict = judge(JudgedCall(tool, planning=True), grounds(permissions=permissions, approval_mode="allow"))
    operation = facts_of(tool).operation
    minimum = "ask" if tool == EXIT_PLAN else "allow" if operation == "read" else "deny"
    configured = approval or ("ask" if tool == TASK_CREATE else "allow")
    assert verdict.approval == max(minimum, configured, key=RANK.__getitem__)


def test_create_tasks_needs_approval_unless_configured() -> None:
    """`task_create` needs approval in each channel, also in a program, and `task_update` needs none."""
    for channel in get_args(Channel):
        assert judge(call("task_create"), grounds(channel)).approval == "ask"
        assert judge(call("task_create"), grounds(channel, permissions={"task_create": "allow"})).approval == "allow"
        assert judge(call("task_update"), grounds(channel)).approval == "allow"


def test_plan_mode_denies_calls_that_would_be_asked_about() -> None:
    """A write to credentials is denied in plan mode, although it would only need approval outside plan mode."""
    assert judge(call("write_file", "/h/.ssh/id"), grounds()).approval == "ask"
    planning = JudgedCall("write_file", (NamedPath("/h/.ssh/id", "/h/.ssh/id"),), planning=True)
    assert judge(planning, grounds()).approval == "deny"
    assert judge(JudgedCall("kill_subagent", planning=True), grounds()).approval == "deny"


def test_unknown_tool_counts_as_running_code() -> None:
    """A tool without an operation needs approval where reading the same path needs none."""
    assert judge(call("mystery", "/h/src/a"), grounds("cli")).approval == "ask"
    assert judge(call("read_file", "/h/src/a"), grounds("cli")).approval == "allow"


@given(verdicts)
def test_strictest_verdict_wins(found: list[Verdict]) -> None:
    """The result has the reasons of the strictest verdicts, and it is local if any verdict is local."""
    together = strictest(found)
    assert RANK[together.approval] == max([RANK[each.approval] for each in found], default=0)
    assert (together.model == "local") == any(each.model == "local" for each in found)
    winners = [each.reason for each in found if each.approval == together.approval]
    assert together.approval == "allow" or set(filter(None, together.reason.split("; "))) == set(filter(None, winners))


@given(verdicts, st.permutations(range(6)))
def test_order_of_sources_does_not_matter(found: list[Verdict], order: list[int]) -> None:
    """The combined approval and model are the same for each order of the verdicts."""
    shuffled = [found[place] for place in order if place < len(found)]
    assert (strictest(found).approval, strictest(found).model) == (
        strictest(shuffled).approval,
        strictest(shuffled).model,
    )


@given(
    st.sampled_from(["read_file", "bash", "write_file", "own"]),
    st.sampled_from(["/h/.ssh/id", "/h/Documents/x", "/h/src/x", "/w/x", "/w/no/x"]),
    st.sampled_from(get_args(Channel)),
    st.sampled_from(ALL_APPROVALS),
    st.sampled_from([None, *ALL_APPROVALS]),
)
def test_permission_does_not_relax_other_sources(
    tool: str, path: str, channel: Channel, permission: Approval, mode: Approval | None
) -> None:
    """The verdict is the stricter one of the permission and the rules on paths and channel."""
    strict = judge(call(tool, path), grounds(channel, approval_mode="allow", denied_paths=("/w/no",)))
    given_ = grounds(channel, approval_mode=mode, permissions={tool: permission}, denied_paths=("/w/no",))
    verdict = judge(call(tool, path), given_)
    assert RANK[verdict.approval] == max(RANK[strict.approval], RANK[permission])


@pytest.mark.parametrize("path", [path.replace("~", "/h") for path in CREDENTIALS])
@pytest.mark.parametrize("channel", get_args(Channel))
def test_credential_paths_are_asked_about_everywhere(channel: Channel, path: str) -> None:
    """Calls on credentials need approval and a local model in each channel and for each tool."""
    for tool in ("read_file", "bash", "own"):
        verdict = judge(call(tool, f"{path}/x"), grounds(channel, permissions={tool: "allow"}))
        assert (verdict.approval, verdict.model) == ("ask", "local")
        assert f"{path}/x holds credentials" in verdict.reason


def test_paths_are_compared_by_component() -> None:
    """A rule on ~/Documents does not match ~/Documents2, and a rule on ~/.ssh does not match ~/.sshx."""
    verdict = judge(call("read_file", "/h/Documents2/a", "/h/.sshx/id"), grounds("cli"))
    assert (verdict.approval, verdict.data) == ("allow", "random")


def test_wildcards_are_matched_against_credential_paths() -> None:
    """A command needs approval if its wildcard can match a credential path."""
    assert judge(call("bash", "/h/.s*/id"), grounds()).approval == "ask"
    assert judge(call("bash", "/h/x*/id"), grounds()).approval == "allow"


def test_denied_paths_override_allowed_folders() -> None:
    """Paths outside the allowed folders and denied paths inside them are denied."""
    rules = grounds(allowed_paths=("/w",), denied_paths=("/w/secret", "*.pem"))
    found = [judge(call("bash", path), rules).approval for path in ("/w/a", "/w/secret/a", "/w/k.pem", "/v", "/wx")]
    assert found == ["allow", "deny", "deny", "deny", "deny"]


def test_link_is_judged_by_name_and_target() -> None:
    """A link is denied if its name or its target is denied, or if its target is outside the allowed folders."""
    rules = grounds(denied_paths=("/w/no",), allowed_paths=("/w",))
    for place in (NamedPath("/w/link", "/w/no/x"), NamedPath("/w/no/link", "/w/x"), NamedPath("/w/link", "/etc/x")):
        assert judge(JudgedCall("read_file", (place,)), rules).approval == "deny"


def test_recursive_search_is_judged_by_the_folders_below_it() -> None:
    """A recursive search needs approval if there are personal or credential paths below its start."""
    home, elsewhere = NamedPath("/h", "/h"), NamedPath("/w", "/w")
    assert judge(JudgedCall("list_files", (home,), start=home), grounds()).approval == "ask"
    assert judge(JudgedCall("list_files", (home, elsewhere), start=elsewhere), grounds()).approval == "allow"
    assert judge(call("read_file", "/h"), grounds()).approval == "allow"


def test_paths_below_a_search_are_skipped_unless_approved() -> None:
    """A search skips denied and personal paths below its start, except paths that its approval covers."""
    rules = grounds("cli", denied_paths=("/w/no", "*.pem", "/v/no"), personal_paths=("/w/mine",))
    home, work, mine = NamedPath("/h", "/h"), NamedPath("/w", "/w"), NamedPath("/w/mine", "/w/mine")
    assert skipped_rules(rules, JudgedCall("grep_files", (work,), start=work), "/w") == ("/w/no", "*.pem", "/w/mine")
    assert skipped_rules(rules, JudgedCall("grep_files", (mine,), start=mine), "/w/mine") == ("*.pem",)
    assert "/h/.ssh" in skipped_rules(rules, JudgedCall("git_diff", (home,)), "/h")
    assert "/h/.ssh" not in skipped_rules(rules, JudgedCall("grep_files", (home,), start=home), "/h")


def test_personal_data_makes_later_calls_personal() -> None:
    """A call without personal data needs approval after the turn has used personal data."""
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
    """Without an approval mode, dangerous tools need approval in the CLI and are allowed in a program."""
    rules = grounds(channel, approval_mode=mode)
    assert judge(call("bash", "/w/a"), rules).approval == expected
    assert judge(call("read_file", "/w/a"), rules).approval == "allow"


@pytest.mark.parametrize("bits", [None, (), ("untrusted", "sensitive"), ("acts",)])
@pytest.mark.parametrize("channel", get_args(Channel))
@pytest.mark.parametrize("mode", [None, *ALL_APPROVALS])
def test_executor_tool_that_runs_code_follows_the_approval_mode(
    channel: Channel, mode: Approval | None, bits: tuple[Bit, ...] | None
) -> None:
    """A tool of an executor is judged like `bash`, unless it declares bits without `acts`. Other tools are not."""
    rules = grounds(channel, approval_mode=mode)

    def approval(tool: str, *, in_executor: bool = False) -> Approval:
        found = evaluate(tool, {}, (), rules, declared_bits=bits, in_executor=in_executor)
        return found.verdict.approval

    runs_code = bits is None or "acts" in bits
    assert approval("own", in_executor=True) == (approval("bash") if runs_code else "allow")
    assert approval("own") == "allow"


def test_tool_permission_replaces_the_approval_mode() -> None:
    """A permission applies to the named tool, and a tool without a permission follows the approval mode."""
    rules = grounds("cli", permissions={"bash": "allow", "read_file": "deny"})
    assert [judge(call(tool, "/w/a"), rules).approval for tool in ("bash", "read_file", "write_file")] == [
        "allow",
        "deny",
        "ask",
    ]


def test_reason_names_path_and_rule() -> None:
    """The reason of a denial contains the path, the setting and the rule, so that the user can find the rule."""
    verdict = judge(call("bash", "/w/no/x"), grounds("cli", denied_paths=("/w/no",)))
    assert verdict.reason == "/w/no/x is denied by denied_paths (/w/no)"


@pytest.mark.parametrize(
    ("rule", "matching", "others"),
    [
        ("/w/**/*.key", ["/w/a.key", "/w/b/a.key", "/w/b/c/a.key", "/w/b/a.key/d"], ["/w/b/a", "/a.key"]),
        ("/w/**/b", ["/w/b", "/w/b/x", "/w/c/b/x", "/w/c/d/b"], ["/w/c", "/w/bb"]),
        ("/w/**/b/**", ["/w/b/x", "/w/b/c/x", "/w/c/b/x"], ["/w/b", "/w/c/x"]),
        ("/w/b/**", ["/w/b/x", "/w/b/c/x"], ["/w/b", "/w/c/x"]),
        ("/w/b/**/x", ["/w/b/x", "/w/b/c/x", "/w/b/c/d/x/y"], ["/w/x", "/w/c/x", "/w/b/c"]),
        ("/w/**/**/x", ["/w/x", "/w/b/x"], ["/x"]),
        ("/**/b/**/x", ["/b/x", "/w/b/c/x", "/w/b/b/c/x"], ["/w/x/b", "/w/c/x"]),
    ],
)
def test_two_stars_match_any_number_of_folders(rule: str, matching: list[str], others: list[str]) -> None:
    """As in `.gitignore`, "**" also matches no folder, and a rule that ends with "**" matches everything inside."""
    matches = path_matcher([rule])
    for path in (*matching, *others):
        assert path_matches(path, rule) is matches(path) is (path in matching), path


@pytest.mark.parametrize(
    ("start", "reachable"),
    [("/", True), ("/w", True), ("/w/b", True), ("/w/b/c", True), ("/w/b/c/x", False), ("/v", False)],
)
def test_rule_with_two_stars_can_match_below_each_folder(start: str, reachable: bool) -> None:
    """A recursive tool that starts below the fixed part of the rule skips the files, too."""
    assert rules_below(["/w/b/**/x"], start) == (("/w/b/**/x",) if reachable else ())


@pytest.mark.parametrize(
    ("usable", "path", "approval"),
    [
        ("~/.ssh", "/h/.ssh", "allow"),
        ("~/.ssh", "/h/.ssh/id", "allow"),
        ("~/.ssh", "/h/.ssh/id*", "allow"),
        ("~", "/h/.ssh/id", "allow"),
        ("~/.ssh/id", "/h/.ssh/id", "allow"),
        ("~/.ssh/id", "/h/.ssh/identity", "ask"),
        ("~/.ssh/id", "/h/.ssh", "ask"),
        ("~/.ssh/id", "/h/.ssh/*", "ask"),
        ("~/.ssh", "/h/.*/id", "ask"),
        ("~/.ssh", "/h/.kube/config", "ask"),
    ],
)
def test_commands_that_name_usable_credentials_need_no_approval(usable: str, path: str, approval: Approval) -> None:
    """A tool that runs no command needs approval for the same path."""
    rules = grounds(usable_credentials=(usable,))
    assert judge(call("bash", path), rules).approval == approval
    assert judge(call("read_file", path), rules).approval == "ask"


def test_link_from_usable_credentials_to_other_credentials_needs_approval() -> None:
    """The target of a link decides, because the mounts that hide credentials also follow links."""
    link = JudgedCall("bash", (NamedPath("/h/.ssh/link", "/h/.gnupg/key"),))
    assert judge(link, grounds(usable_credentials=("~/.ssh",))).approval == "ask"


@given(
    st.lists(
        st.sampled_from(
            ["*.k", "[ab]?", "a", "/", "/a", "/a/b", "/*/b", "/a/*.k", "/*/*/a", "/a/b/a/b", "/**/a/*.k", "/a/**/b/**"]
        ),
        max_size=4,
    ),
    st.lists(st.lists(st.sampled_from(["a", "b", "ab", "x.k"]), min_size=1, max_size=4), max_size=4),
)
def test_verdict_on_many_files_is_the_same_as_on_each(rules: list[str], paths: list[list[str]]) -> None:
    """A matcher that is used for many paths gives the same result as `path_matches` for each path."""
    says = path_matcher(rules)
    for parts in paths:
        path = "/" + "/".join(parts)
        assert says(path) == any(path_matches(path, rule) for rule in rules)
