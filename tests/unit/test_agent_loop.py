"""The loop: what ends a run, what the model is told, what the reader sees."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest
from agent_fakes import (
    Command,
    MemoryBox,
    Script,
    budget_of,
    conversation,
    data,
    drain,
    says,
    toolbox_over,
)

from service.contracts import ExitReason, Usage
from service.errors import ModelError, SandboxError, Stopped
from service.events import MessageDone, Notice, TextDelta, ToolFinished, ToolOutput, ToolStarted, UsageChanged
from worker.agent import loop
from worker.agent.loop import Outcome, run_agent
from worker.llm.messages import Assistant, Reply, TokenUsage, ToolCall, ToolResult, User


def run(script: Script, box: MemoryBox | None = None, **more: Any) -> tuple[list[Any], Outcome]:
    limits = more.pop("limits", {})
    return drain(
        run_agent(
            script,
            more.pop("toolbox", None) or toolbox_over(box or MemoryBox()),
            more.pop("conversation", None) or conversation(),
            budget_of(**limits),
            checkpoint=more.pop("checkpoint", lambda: None),
            **more,
        )
    )


def last_results(script: Script, asked: int) -> list[ToolResult]:
    return [message for message in script.asked[asked] if isinstance(message, ToolResult)]


def notes(script: Script) -> list[str]:
    texts = [message.text for message in script.asked[-1] if isinstance(message, User)]
    return [text for text in texts if text.startswith("[Patchyard]")]


# ------------------------------------------------------------------------------------------ how it ends


def test_a_plain_reply_before_any_tool_is_an_answer() -> None:
    events, outcome = run(Script(says("42.")))
    assert outcome == Outcome(ExitReason.ANSWERED, "42.", Usage(turns=1, input_tokens=10, output_tokens=5))
    assert events == [
        TextDelta("42."),
        MessageDone("assistant", "42.", 1),
        UsageChanged(outcome.usage.model_dump()),
    ]


def test_done_completes_a_run_that_used_a_tool() -> None:
    script = Script(says("Look.", ("bash", {"command": "ls"})), says("", ("done", {"summary": "Fixed it."})))
    box = MemoryBox(commands=[Command((b"a\n",))])
    toolbox = toolbox_over(box)
    events, outcome = run(script, toolbox=toolbox)
    assert (outcome.exit_reason, outcome.summary, outcome.usage.turns) == (ExitReason.COMPLETED, "Fixed it.", 2)
    answer = f"{data(toolbox, 'a')}\n[exit 0]"
    assert script.asked[1][2:] == [
        Assistant("Look.", (ToolCall("c0", "bash", '{"command": "ls"}'),)),
        ToolResult("c0", "bash", answer),
    ]
    told = [event for event in events if not isinstance(event, TextDelta | UsageChanged)]
    assert [type(event) for event in told] == [
        MessageDone, ToolStarted, ToolOutput, ToolFinished, ToolStarted, ToolFinished,
    ]  # fmt: skip
    assert told[1] == ToolStarted("c0", "bash", {"command": "ls"}, 1)
    assert isinstance(told[3], ToolFinished)
    assert (told[3].tool, told[3].ok, told[3].summary) == ("bash", True, "a\n[exit 0]")


def test_a_final_message_after_tools_completes_too() -> None:
    _, outcome = run(Script(says("", ("bash", {"command": "ls"})), says("All done.")))
    assert (outcome.exit_reason, outcome.summary) == (ExitReason.COMPLETED, "All done.")


def test_done_as_the_first_call_is_an_answer() -> None:
    _, outcome = run(Script(says("Because.", ("done", {"summary": ""}))))
    assert (outcome.exit_reason, outcome.summary) == (ExitReason.ANSWERED, "Because.")


def test_nothing_runs_after_done_and_every_call_has_its_result() -> None:
    chat = conversation()
    box = MemoryBox()
    run(Script(says("", ("done", {"summary": "x"}), ("bash", {"command": "rm -rf ."}))), box, conversation=chat)
    assert box.ran == []
    assert [message.call_id for message in chat.messages if isinstance(message, ToolResult)] == ["c0", "c1"]


# --------------------------------------------------------------------------------- replies without words


def test_a_silent_stop_is_asked_about_once() -> None:
    script = Script(says("", ("bash", {"command": "ls"})), says(""), says("", ("done", {"summary": "ok"})))
    events, outcome = run(script)
    assert outcome.exit_reason is ExitReason.COMPLETED
    assert notes(script) == [f"[Patchyard] {loop.SILENT}"]
    assert Assistant("", ()) not in script.asked[2]
    assert [event.code for event in events if isinstance(event, Notice)] == ["empty_reply"]


def test_silence_has_an_end_and_it_is_not_success() -> None:
    script = Script(says(" \n"))
    with pytest.raises(ModelError):
        run(script)
    assert len(script.asked) == 2


def test_a_cut_off_answer_is_kept_and_marked() -> None:
    events, outcome = run(Script(says("The answer is", truncated=True)))
    assert (outcome.exit_reason, outcome.summary) == (ExitReason.ANSWERED, "The answer is")
    assert [event.code for event in events if isinstance(event, Notice)] == ["reply_cut_off"]


def test_a_cut_off_message_during_work_is_continued_a_bounded_number_of_times() -> None:
    script = Script(says("", ("bash", {"command": "ls"})), says("I will", truncated=True))
    with pytest.raises(ModelError):
        run(script)
    assert len(script.asked) == 1 + loop.MAX_CUT_OFF + 1


def test_a_call_that_was_cut_off_is_answered_not_executed() -> None:
    cut = Reply(
        Assistant("", (ToolCall("a", "bash", '{"command":"rm -rf ./x', complete=False),), finish="length"),
        TokenUsage(1, 0, 1),
        None,
        truncated=True,
    )
    box = MemoryBox()
    script = Script(cut, says("", ("done", {"summary": "x"})))
    run(script, box)
    assert box.ran == []
    assert [(result.call_id, result.ok) for result in last_results(script, 1)] == [("a", False)]


# ------------------------------------------------------------------------------------------------ limits


def test_the_last_turn_is_announced_and_the_limit_ends_the_run() -> None:
    script = Script(*(says(f"t{at}", ("bash", {"command": f"echo {at}"})) for at in range(9)))
    _, outcome = run(script, limits={"max_turns": 3})
    assert (outcome.exit_reason, outcome.summary, outcome.usage.turns) == (ExitReason.TURN_LIMIT, "t2", 3)
    assert script.asked[2][-1] == User(f"[Patchyard] {loop.LAST_TURN}")


def test_done_in_the_last_turn_counts() -> None:
    script = Script(says("", ("bash", {"command": "ls"})), says("", ("done", {"summary": "s"})))
    _, outcome = run(script, limits={"max_turns": 2})
    assert outcome.exit_reason is ExitReason.COMPLETED


@pytest.mark.parametrize(
    ("limits", "reply", "reason"),
    [
        ({"max_tokens": 45}, {"usage": TokenUsage(10, 0, 5)}, ExitReason.TOKEN_LIMIT),
        ({"max_cost_usd": 0.3}, {"cost_usd": 0.125}, ExitReason.COST_LIMIT),
    ],
)
def test_tokens_and_money_end_a_run_before_the_next_call(
    limits: dict[str, Any], reply: dict[str, Any], reason: ExitReason
) -> None:
    script = Script(*(says("", ("bash", {"command": f"echo {at}"}), **reply) for at in range(9)))
    _, outcome = run(script, limits=limits)
    assert (outcome.exit_reason, len(script.asked)) == (reason, 3)


def test_a_limit_that_comes_near_is_told_once_to_both() -> None:
    script = Script(*(says("", ("bash", {"command": f"echo {at}"})) for at in range(20)))
    events, _ = run(script, limits={"max_turns": 10})
    text = "8 of 10 turns are used; the run ends at the limit."
    assert [event for event in events if isinstance(event, Notice)] == [Notice("limit_near", text)]
    assert notes(script) == [f"[Patchyard] {text}", f"[Patchyard] {loop.LAST_TURN}"]


def test_the_model_is_given_the_time_that_is_left() -> None:
    script = Script(says("x"))
    run(script)
    assert script.max_seconds == [3600.0]


# ------------------------------------------------------------------------------------------ going round


def test_the_same_call_for_ever_is_steered_then_stopped() -> None:
    script = Script(says("", ("bash", {"command": "ls"})))
    events, outcome = run(script)
    assert (outcome.exit_reason, len(script.asked)) == (ExitReason.LOOP_DETECTED, 8)
    assert [event.code for event in events if isinstance(event, Notice)] == ["loop_suspected"]
    assert len(notes(script)) == 1
    assert "the same call gave the same result 4 times" in notes(script)[0]


def test_a_result_that_changes_is_progress() -> None:
    box = MemoryBox(commands=[Command((b"%d" % at,)) for at in range(20)])
    _, outcome = run(Script(says("", ("bash", {"command": "date"}))), box, limits={"max_turns": 20})
    assert outcome.exit_reason is ExitReason.TURN_LIMIT


# ------------------------------------------------------------------------------------ odd and bad replies


def test_odd_tool_names_each_get_an_error_result() -> None:
    box = MemoryBox()
    script = Script(
        says("", ("functions.bash", {"command": "pwd"}), ("str_replace_editor", {}), ("", {})),
        says("", ("done", {"summary": "x"})),
    )
    run(script, box)
    assert [ran["command"] for ran in box.ran] == ["pwd"]
    assert [result.ok for result in last_results(script, 1)] == [True, False, False]


def test_broken_arguments_go_back_and_never_run() -> None:
    box = MemoryBox()
    script = Script(
        says("", ("bash", '{"command":"echo 1"}{"command":"echo 2"}')), says("", ("done", {"summary": "x"}))
    )
    events, _ = run(script, box)
    assert box.ran == []
    assert last_results(script, 1)[0].text == (
        "Error: the arguments hold more than one JSON value; make one call for each"
    )
    started = next(event for event in events if isinstance(event, ToolStarted))
    assert started.arguments == {"unreadable": '{"command":"echo 1"}{"command":"echo 2"}'}


def test_events_stay_small() -> None:
    call = ("write_file", {"path": "a", "content": "x" * 500_000})
    events, _ = run(Script(says("", call), says("done")))
    started = next(event for event in events if isinstance(event, ToolStarted))
    assert started.arguments["content"] == "x" * 2_000 + "… (498,000 more characters)"
    big = MemoryBox(commands=[Command((b"y" * 100_000,))])
    events, _ = run(Script(says("", ("bash", {"command": "x"})), says("done")), big)
    assert [len(event.summary) for event in events if isinstance(event, ToolFinished)] == [2_000]


def test_the_todo_reminder_stands_in_front_of_the_next_result() -> None:
    todo = {"items": [{"text": "a", "status": "in_progress"}]}
    box = MemoryBox(commands=[Command((b"%d" % at,)) for at in range(9)])
    script = Script(says("", ("todo", todo)), *(says("", ("bash", {"command": "x"})) for _ in range(3)), says("end"))
    run(script, box)
    texts = [result.text for result in last_results(script, 4)]
    assert [text.startswith("[Reminder: ") for text in texts] == [False, False, False, True]


# ------------------------------------------------------------------------------------- stopped from outside


def test_a_checkpoint_stands_before_each_model_call_and_each_tool_call() -> None:
    order: list[str] = []
    script = Script(
        says("", ("bash", {"command": "1"}), ("bash", {"command": "2"})), says("", ("done", {"summary": "x"}))
    )
    run(script, checkpoint=lambda: order.append(f"after {len(script.asked)} replies"))
    assert order == ["after 0 replies", *["after 1 replies"] * 3, "after 2 replies"]


def test_a_stop_ends_the_run_before_the_next_tool() -> None:
    box = MemoryBox()
    script = Script(says("", ("bash", {"command": "1"}), ("bash", {"command": "2"})))

    def checkpoint() -> None:
        if box.ran:
            raise Stopped("cancelled on request")

    with pytest.raises(Stopped):
        run(script, box, checkpoint=checkpoint)
    assert [ran["command"] for ran in box.ran] == ["1"]


def test_a_box_that_is_gone_ends_the_run() -> None:
    class Gone(MemoryBox):
        def exec(self, *_: Any, **__: Any) -> Any:
            raise SandboxError("the box is gone")

    with pytest.raises(SandboxError):
        run(Script(says("", ("bash", {"command": "ls"}))), Gone())


def test_a_closed_run_closes_the_command_in_flight() -> None:
    closed: list[bool] = []

    class Endless(MemoryBox):
        def exec(self, *_: Any, **__: Any) -> Any:
            try:
                while True:
                    yield b"x" * 2_000
            finally:
                closed.append(True)

    steps = run_agent(
        Script(says("", ("bash", {"command": "yes"}))),
        toolbox_over(Endless()),
        conversation(),
        budget_of(),
        checkpoint=lambda: None,
    )
    while not isinstance(next(steps), ToolOutput):
        pass
    steps.close()
    assert closed == [True]


def test_every_call_is_recorded_with_what_the_model_was_told() -> None:
    written: list[dict[str, Any]] = []

    class Book:
        def tool(self, **fields: Any) -> None:
            written.append(fields)

    script = Script(says("", ("bash", {"command": "ls"}), ("nope", {})), says("end"))
    run(script, record=Book())
    assert [(entry["id"], entry["tool"], entry["ok"]) for entry in written] == [
        ("c0", "bash", True),
        ("c1", "nope", False),
    ]
    assert json.loads(written[0]["arguments"]) == {"command": "ls"}
    assert written[0]["result"] == "(no output)\n[exit 0]"
    assert written[0]["duration_ms"] >= 0


def test_the_loop_is_one_readable_page() -> None:
    assert len(inspect.getsource(loop).splitlines()) <= 200
