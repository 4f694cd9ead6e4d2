"""Evaluates a call by all configured rules: paths, data, plan mode, permissions, taint."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final, get_args

from msgspec import Struct

from orch_protocol.core.errors import ConfigError
from orch_protocol.core.taint import Bit, TaintLabel
from orch_protocol.policy.policy import Channel, PolicyCall, PolicyConfig, PolicySpec, Verdict
from orch_protocol.policy.sandbox import SandboxSpec

from .path_rules import expand_wildcards, opened_path, paths_in_call, resolve_rules, shell_context
from .rules import (
    RECURSIVE,
    JudgedCall,
    NamedPath,
    ResolvedRules,
    check_path_rules,
    judge,
    requested_credentials,
    strictest,
)
from .taint import CallTaint, judge_taint, taint_of_call

__all__ = ["Evaluation", "evaluate", "policy"]

TOO_MANY_PATHS: Final = Verdict("ask", "any", "its arguments contain too many paths to check")
READS_CREDENTIALS: Final = Verdict("ask", "any", "the command can read credentials")


class Evaluation(Struct, frozen=True):
    """The verdict on a call, and the taint that the call adds.

    `tainted` is True if the taint rules restrict the call. An approval of the call makes the paths `credentials`
    (resolved) readable for its command.
    """

    verdict: Verdict
    call_taint: CallTaint
    tainted: bool
    credentials: tuple[str, ...] = ()


def evaluate(
    tool: str,
    input: dict[str, Any],
    paths: tuple[NamedPath, ...] | None,
    resolved_rules: ResolvedRules,
    *,
    personal: bool = False,
    planning: bool = False,
    labels: tuple[TaintLabel, ...] = (),
    declared_bits: tuple[Bit, ...] | None = None,
    in_executor: bool = False,
    sandbox: SandboxSpec = SandboxSpec(),  # noqa: B008
    opened: NamedPath | None = None,
) -> Evaluation:
    """Return the evaluation of a call that names the paths `paths` (see `paths_in_call`).

    `opened`: the path that the tool opens (see `opened_path`). `labels` are the labels of the conversation. `personal`:
    an earlier call of the turn used personal data. `planning`: the agent is in plan mode. `declared_bits`: the taint
    bits that the tool declares. `in_executor`: the tool belongs to an executor.
    """
    expanded = expand_wildcards(paths) if paths is not None else None
    call = JudgedCall(
        tool,
        tuple(dict.fromkeys((*(paths or ()), *((opened,) if opened is not None else ()), *(expanded or ())))),
        personal,
        planning,
        opened if tool in RECURSIVE else None,
        runs_code=in_executor and (declared_bits is None or "acts" in declared_bits),
    )
    verdict = judge(call, resolved_rules)
    call_taint = taint_of_call(call, input, declared_bits, resolved_rules, resolved_rules.spec.rules.taint, sandbox)
    taint = judge_taint(call, call_taint, labels, resolved_rules.spec.rules.taint)
    verdicts = [verdict, taint]
    if expanded is None:
        verdicts.append(TOO_MANY_PATHS)
    wants_credentials = tool == "bash" and input.get("credentials", False) is not False
    if wants_credentials:
        verdicts.append(READS_CREDENTIALS)
    credentials = requested_credentials(call, resolved_rules, all=wants_credentials)
    return Evaluation(
        strictest(verdicts, verdict.data),
        call_taint,
        taint.approval != "allow",
        tuple(sorted(set(map(os.path.realpath, credentials)))),
    )


def policy(call: PolicyCall, config: PolicyConfig, *, channel: Channel = "api", planning: bool = False) -> Verdict:
    """Return the verdict of the rules `config` on `call`, before any approval.

    `call.folder` is the working folder; "" means the current folder. Paths are searched in `call.input`, and the paths
    in `call.paths` are judged too. If `call.data` is "personal", the rules assume that the turn has used personal data.
    `channel` is the origin of the request: "api", "person" or "cli". `planning` is True if the agent is in plan mode.
    Policy functions are not called. Raise ConfigError for invalid rules.
    """
    if not isinstance(call, PolicyCall) or not isinstance(config, PolicyConfig):
        raise ConfigError(
            f"policy takes a PolicyCall and a PolicyConfig; got {type(call).__name__} and {type(config).__name__}"
        )
    if channel not in get_args(Channel):
        raise ConfigError(f"unknown channel {channel!r}: choose one of {', '.join(get_args(Channel))}")
    check_path_rules(config)
    shell = shell_context(Path(call.folder or "."), {})
    paths = paths_in_call(call.tool, call.input, shell)
    if paths is not None:
        extra_paths = (os.path.join(shell.cwd, os.path.expanduser(path)) for path in call.paths)
        paths = (*paths, *(NamedPath(os.path.normpath(path), os.path.realpath(path)) for path in extra_paths))
    return evaluate(
        call.tool,
        call.input,
        paths,
        resolve_rules(PolicySpec(channel, config), shell),
        personal=call.data == "personal",
        planning=planning,
        labels=call.marks,
        opened=opened_path(call.tool, call.input, shell),
    ).verdict
