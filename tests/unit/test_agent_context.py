"""The three layers that keep a conversation within its window: what goes, what stays, what it costs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from agent_fakes import Command, MemoryBox, budget_of, data, drain, says, toolbox_over, use

from service.contracts import ExitReason, Usage
from service.errors import ContextOverflow, ModelError, RunError
from service.events import Compacted, Event, Notice, TextDelta, UsageChanged
from worker.agent import compaction
from worker.agent.context import Conversation
from worker.agent.digest import label
from worker.agent.loop import run_agent
from worker.llm.messages import Assistant, Message, Reply, System, TokenUsage, ToolCall, ToolResult, User
from worker.llm.profiles import Profile
from worker.llm.scripted import ScriptedModel
from worker.llm.summaries import SUMMARY_HEAD
from worker.tools.base import Session, Skill
from worker.tools.registry import TOOLS, Toolbox
from worker.tools.skill import SKILL

WINDOW = 30_000
"""Tokens: 63,000 characters are 70 % of it, 36,000 two fifths, 18,000 a fifth, 9,000 a tenth."""


def model(*script: Assistant | Reply | RunError, window: int = WINDOW, **usage: int) -> ScriptedModel:
    profile = Profile(name="s", base_url="", model="s", context_window=window)
    return ScriptedModel(script, profile=profile, usage=TokenUsage(**usage) if usage else None)


def turn(at: int, result: str, tool: str = "bash", argument: str = "ls", **arguments: str) -> list[Message]:
    """One call with its result."""
    text = json.dumps({"command": argument, **arguments})
    return [Assistant("", (ToolCall(f"c{at}", tool, text),)), ToolResult(f"c{at}", tool, result)]


def chat(*messages: Message) -> Conversation:
    conversation = Conversation.start("system", "task")
    conversation.add(*messages)
    return conversation


def results(messages: Iterable[Message]) -> list[str]:
    return [message.text for message in messages if isinstance(message, ToolResult)]


def paired(messages: Iterable[Message]) -> bool:
    """Every call is followed by its result and no result is without its call."""
    waiting: list[str] = []
    for message in messages:
        if isinstance(message, ToolResult):
            if message.call_id not in waiting:
                return False
            waiting.remove(message.call_id)
        elif waiting:
            return False
        elif isinstance(message, Assistant):
            waiting = [call.id for call in message.calls]
    return not waiting


@pytest.fixture
def toolbox() -> Toolbox:
    return toolbox_over(MemoryBox())


# ------------------------------------------------------------------------------------------------- micro


def test_micro_leaves_a_line_of_results_older_than_the_last_few(toolbox: Toolbox) -> None:
    body = "\n".join(f"line {at}" for at in range(240))
    read = f"src/a.py\n{data(toolbox, body)}\n[lines 1-240 of 240]"
    conversation = chat(*turn(0, read, "read_file", "src/a.py"), *turn(1, f"{data(toolbox, body)}\n[exit 1]"))
    for at in range(2, 8):
        conversation.add(*turn(at, f"{at}" * 400))
    compaction.shed(conversation, toolbox, WINDOW)
    kept = "; taken out to save room: call again if you need it]"
    assert results(conversation.messages) == [
        f"[read_file src/a.py, 240 lines [lines 1-240 of 240]{kept}",
        f"[bash ls, 240 lines [exit 1]{kept}",
        *(f"{at}" * 400 for at in range(2, 8)),
    ]
    assert paired(conversation.messages)
    before = list(conversation.messages)
    compaction.shed(conversation, toolbox, WINDOW)
    assert conversation.messages == before


def test_micro_keeps_fewer_large_results_but_always_those_the_model_has_not_seen(toolbox: Toolbox) -> None:
    conversation = chat(*turn(0, "a" * 16_000), *turn(1, "b" * 16_000), *turn(2, "c" * 16_000))
    compaction.shed(conversation, toolbox, WINDOW)
    assert [len(text) > 1_000 for text in results(conversation.messages)] == [False, True, True]
    compaction.shed(conversation, toolbox, 1_000)
    assert [len(text) > 1_000 for text in results(conversation.messages)] == [False, False, True]


def test_micro_leaves_short_results_alone(toolbox: Toolbox) -> None:
    conversation = chat(*(message for at in range(9) for message in turn(at, "x" * 300)))
    compaction.shed(conversation, toolbox, WINDOW)
    assert results(conversation.messages) == ["x" * 300] * 9


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ('{"content": "x = 1", "path": "a.py"}', "write_file a.py"),
        ('{"path": "src", "pattern": "def  f"}', "write_file def f"),
        ('{"command": "' + "x" * 200 + '"}', "write_file " + "x" * 120),
        ('{"path": 7}', "write_file"),
        ("[]", "write_file"),
        ("[" * 100_000, "write_file"),
    ],
)
def test_a_call_is_named_by_what_it_was_about(arguments: str, named: str) -> None:
    assert label(ToolCall("c", "write_file", arguments)) == named


def test_a_failure_keeps_its_reason(toolbox: Toolbox) -> None:
    failed = ToolResult("c0", "edit_file", "Error: no match\n" + "near\n" * 200, ok=False)
    first = Assistant("", (ToolCall("c0", "edit_file", "{not json"),))
    conversation = chat(first, failed, *(message for at in range(1, 7) for message in turn(at, "x")))
    compaction.shed(conversation, toolbox, WINDOW)
    assert results(conversation.messages)[0].startswith("[edit_file: Error: no match; taken out")


# -------------------------------------------------------------------------------------------------- auto


def long_talk(toolbox: Toolbox) -> Conversation:
    """72 % of the window, in assistants' words, so that micro has nothing to do."""
    conversation = chat(User("Never touch the API.", pinned=True))
    for at in range(8):
        said, result = turn(at, "ok", "write_file", f"f{at}.py")
        assert isinstance(said, Assistant)
        conversation.add(Assistant(f"{at}" * 8_100, said.calls), result)
    assert conversation.tokens * 3 == pytest.approx(0.72 * WINDOW * 3, rel=0.01)
    return conversation


def test_auto_puts_a_summary_by_the_model_in_place_of_old_turns(toolbox: Toolbox) -> None:
    use(toolbox, "todo", {"items": [{"text": "Test it", "status": "in_progress"}]})
    conversation, budget = long_talk(toolbox), budget_of()
    before = conversation.tokens
    asked = model(Assistant("## Goal\nAll of it."), input=7, output=3)
    events, _ = drain(compaction.make_room(asked, conversation, toolbox, budget))
    assert conversation.messages[:4] == [
        System("system"),
        User("task", pinned=True),
        User("Never touch the API.", pinned=True),
        User(
            "[Patchyard] Older turns were taken out to save room. Your notes of them:\n"
            f"{data(toolbox, '## Goal' + chr(10) + 'All of it.')}\n\n"
            f"Your todo list:\n{data(toolbox, '- Test it (in_progress)')}"
        ),
    ]
    said = [message.text for message in conversation.messages[4:] if isinstance(message, Assistant)]
    assert said == ["6" * 8_100, "7" * 8_100]
    assert paired(conversation.messages)
    # What it cost is counted, but it is no turn; its words are not shown as the agent's.
    assert budget.usage == Usage(turns=0, input_tokens=7, output_tokens=3)
    assert events == [UsageChanged(budget.usage.model_dump()), Compacted("auto", before, conversation.tokens)]
    assert conversation.tokens < 0.25 * WINDOW


def test_the_summary_is_asked_for_with_the_task_and_the_old_turns_as_data(toolbox: Toolbox) -> None:
    asked = model(Assistant("Sum."))
    drain(compaction.make_room(asked, long_talk(toolbox), toolbox, budget_of()))
    system, user = asked.asked[0]
    assert isinstance(system, System)
    assert isinstance(user, User)
    assert system.text.startswith(SUMMARY_HEAD)
    for heading in ("## Goal", "## Decisions", "## Files touched", "## Open points"):
        assert heading in system.text
    assert user.text.startswith(
        f"The task:\ntask\n\nNever touch the API.\n\nThe turns to sum up:\n<{toolbox.marker}>\n"
    )
    assert user.text.endswith(f'CALL: write_file {{"command": "f5.py"}}\nRESULT: ok\n</{toolbox.marker}>')
    assert user.text.count(toolbox.marker) == 2
    assert len(user.text) < 15_000


def test_a_second_summary_builds_on_the_first_and_pins_are_not_doubled(toolbox: Toolbox) -> None:
    use(toolbox, "todo", {"items": [{"text": "Test it", "status": "pending"}]})
    conversation, asked = long_talk(toolbox), model(Assistant("First."), Assistant("Second."))
    drain(compaction.make_room(asked, conversation, toolbox, budget_of()))
    for at in range(8, 16):
        conversation.add(Assistant("z" * 8_100, turn(at, "", "bash")[0].calls), ToolResult(f"c{at}", "bash", "ok"))  # type: ignore[union-attr]
    drain(compaction.make_room(asked, conversation, toolbox, budget_of()))
    known = asked.asked[1][1]
    assert isinstance(known, User)
    assert "What was noted of still earlier turns:\nFirst." in known.text
    texts = [message.text for message in conversation.messages if isinstance(message, User)]
    assert len(texts) == 3
    assert "Second." in texts[2]
    assert "First." not in texts[2]
    assert texts[2].count("Test it") == 1


@pytest.mark.parametrize(
    "reply", [Assistant(" "), ModelError("quota used up", retryable=False), ContextOverflow("big")]
)
def test_without_a_summary_the_calls_are_listed(toolbox: Toolbox, reply: Assistant | RunError) -> None:
    conversation = long_talk(toolbox)
    events, _ = drain(compaction.make_room(model(reply), conversation, toolbox, budget_of()))
    digest = conversation.messages[3]
    assert isinstance(digest, User)
    listed = "\n".join(f"- write_file f{at}.py, 1 line" for at in range(6))
    touched = "f0.py, f1.py, f2.py, f3.py, f4.py, f5.py"
    assert data(toolbox, f"Files touched: {touched}\nCalls, the newest last:\n{listed}") in digest.text
    failed = [event.text for event in events if isinstance(event, Notice)]
    assert failed == ([] if isinstance(reply, Assistant) else [
        f"No summary of the old turns ({reply.detail}); a list of the calls is kept."
    ])  # fmt: skip


def test_nothing_is_asked_below_seventy_per_cent_or_with_a_budget_that_is_used_up(toolbox: Toolbox) -> None:
    conversation = long_talk(toolbox)
    assert drain(compaction.make_room(model(window=31_500), conversation, toolbox, budget_of()))[0] == []
    spent = budget_of(max_turns=1)
    spent.charge(says("x"), 0)
    assert drain(compaction.make_room(model(), conversation, toolbox, spent))[0] == []


def test_a_task_that_fills_the_window_does_not_buy_summaries_of_nothing(toolbox: Toolbox) -> None:
    conversation = Conversation.start("system", "t" * 80_000)
    conversation.add(*turn(0, "x" * 200), *turn(1, "y"))
    assert drain(compaction.make_room(model(), conversation, toolbox, budget_of()))[0] == []


def test_an_end_tag_in_a_summary_does_not_end_its_block(toolbox: Toolbox) -> None:
    conversation = long_talk(toolbox)
    drain(compaction.make_room(model(Assistant(f"a</{toolbox.marker}>b")), conversation, toolbox, budget_of()))
    digest = conversation.messages[3]
    assert isinstance(digest, User)
    assert data(toolbox, "ab") in digest.text


# ---------------------------------------------------------------------------------------------- reactive


def test_reactive_keeps_the_newest_turn_cut_and_asks_once_more(toolbox: Toolbox) -> None:
    conversation = chat(*turn(0, "a" * 9_000, "read_file", "a.py"), *turn(1, "b" * 9_000))
    before = conversation.tokens
    asked = model(ContextOverflow("too long"), Assistant("ok"))
    events, reply = drain(compaction.ask(asked, conversation, toolbox, budget_of()))
    assert reply.message.text == "ok"
    listed = data(toolbox, "Files touched: none\nCalls, the newest last:\n- read_file a.py, 1 line")
    assert conversation.messages[:3] == [
        System("system"),
        User("task", pinned=True),
        User(f"[Patchyard] Older turns were taken out to save room. Your notes of them:\n{listed}"),
    ]
    (last,) = results(conversation.messages)
    assert len(last) <= compaction.SQUEEZED_CHARS
    assert "characters left out here; ask for less at a time …]" in last
    assert paired(asked.asked[1])
    assert [type(event) for event in events] == [Compacted, TextDelta]
    assert events[0] == Compacted("reactive", before, len_tokens(asked.asked[1]))
    assert conversation.ceiling == before


def len_tokens(messages: Iterable[Message]) -> int:
    conversation = Conversation()
    conversation.add(*messages)
    return conversation.tokens


def test_a_conversation_that_still_does_not_fit_ends_the_run(toolbox: Toolbox) -> None:
    conversation = chat(*turn(0, "a" * 9_000))
    asked = model(ContextOverflow("too long"), ContextOverflow("still too long"))
    with pytest.raises(ContextOverflow, match="still too long"):
        drain(compaction.ask(asked, conversation, toolbox, budget_of()))
    assert len(asked.asked) == 2
    assert len_tokens(asked.asked[1]) < len_tokens(asked.asked[0])


def test_what_cannot_be_made_smaller_is_not_sent_again(toolbox: Toolbox) -> None:
    asked = model(ContextOverflow("too long"))
    with pytest.raises(ContextOverflow, match="too long"):
        drain(compaction.ask(asked, chat(*turn(0, "short")), toolbox, budget_of()))
    assert len(asked.asked) == 1


def test_a_refused_size_counts_as_the_window_from_then_on(toolbox: Toolbox) -> None:
    conversation = chat(*turn(0, "a" * 9_000))
    drain(compaction.ask(model(ContextOverflow("x"), Assistant("ok")), conversation, toolbox, budget_of()))
    assert conversation.ceiling == pytest.approx(3_000, rel=0.01)
    for at in range(1, 8):
        conversation.add(*turn(at, "y" * 290, "bash", "q" * 700))
    events, _ = drain(compaction.make_room(model(Assistant("Sum.")), conversation, toolbox, budget_of()))
    assert [event.layer for event in events if isinstance(event, Compacted)] == ["auto"]


# ---------------------------------------------------------------------------------------- skills in use


def skilled() -> Toolbox:
    """A toolbox whose model works by a long skill."""
    box = MemoryBox({"/workspace/s/SKILL.md": b"---\nname: s\n---\n" + b"step\n" * 1_000})
    session = Session(box, {}, 120, lambda *_: None, skills={"s": Skill("s", "d", "s/SKILL.md")})  # type: ignore[arg-type]
    return Toolbox(session, (*TOOLS, SKILL))


def test_a_skill_in_use_survives_every_layer() -> None:
    toolbox = skilled()
    _, answer = use(toolbox, "skill", {"name": "s"})
    assert len(answer.text) > 5_000
    conversation = chat(*turn(0, answer.text, "skill", "s"))
    for at in range(1, 8):
        conversation.add(*turn(at, "r" * 4_000))
    compaction.shed(conversation, toolbox, WINDOW)
    assert [len(text) > 300 for text in results(conversation.messages)] == [True, False, *[True] * 6]

    conversation.measured(WINDOW)
    drain(compaction.make_room(model(Assistant("Sum.")), conversation, toolbox, budget_of()))
    told = [message.text for message in conversation.messages if isinstance(message, User)]
    assert told[1] == (
        "[Patchyard] Older turns were taken out to save room. Your notes of them:\n"
        f"{data(toolbox, 'Sum.')}\n\n{answer.text}"
    )

    assert compaction.squeeze(conversation, toolbox)
    assert answer.text in "\n".join(message.text for message in conversation.messages if isinstance(message, User))


def test_a_skill_that_is_still_shown_is_neither_cut_nor_said_twice() -> None:
    toolbox = skilled()
    _, answer = use(toolbox, "skill", {"name": "s"})
    conversation = chat(*turn(0, "a" * 9_000), *turn(1, answer.text, "skill", "s"))
    assert compaction.squeeze(conversation, toolbox)
    assert results(conversation.messages) == [answer.text]
    told = [message.text for message in conversation.messages if isinstance(message, User)]
    assert "step" not in told[1]


# ------------------------------------------------------------------------------------------- a long run


class Honest(ScriptedModel):
    """Has a real window, refuses what does not fit and what is not paired, and counts as providers do."""

    def __init__(self, turns: int) -> None:
        super().__init__([], profile=Profile(name="h", base_url="", model="h", context_window=32_000))
        self.turns = turns
        self.sizes: list[int] = []
        self.summaries = 0
        self.lost_pins = 0

    def ask(self, messages: Any, tools: Any, *, max_seconds: float) -> Any:
        assert paired(messages)
        tokens = sum(len(str(message)) for message in messages) // 3
        assert tokens < 32_000
        if messages[0].text.startswith(SUMMARY_HEAD):
            self.summaries += 1
            yield TextDelta("never shown")
            return Reply(Assistant("## Goal\nGo on."), TokenUsage(1_000, 0, 100), 0.01, prompt_tokens=tokens)
        self.sizes.append(tokens)
        told = "\n".join(message.text for message in messages)
        pins = (User("task", pinned=True) in messages, "Keep going" in told or len(self.sizes) <= 1)
        self.lost_pins += not all(pins)
        at = len(self.sizes)
        calls: list[tuple[str, Any]] = [("bash", {"command": f"seq {at}"})]
        if at == 1:
            calls = [("todo", {"items": [{"text": "Keep going", "status": "in_progress"}]})]
        if at == self.turns:
            calls = [("done", {"summary": "Done."})]
        made = tuple(ToolCall(f"k{at}", name, json.dumps(arguments)) for name, arguments in calls)
        return Reply(Assistant(f"Step {at}. " + "w" * 600, made), TokenUsage(100, 0, 10), 0.001, prompt_tokens=tokens)


def test_three_hundred_turns_of_20_kb_in_a_32k_window() -> None:
    box = MemoryBox(commands=[Command(((f"{at:>6}\n" * 2_900).encode(),)) for at in range(300)])
    asked, budget, conversation = Honest(300), budget_of(max_turns=400, max_cost_usd=50.0), chat()
    events: list[Event]
    events, outcome = drain(run_agent(asked, toolbox_over(box), conversation, budget, checkpoint=lambda: None))
    assert (outcome.exit_reason, outcome.summary) == (ExitReason.COMPLETED, "Done.")
    assert (len(asked.sizes), asked.lost_pins) == (300, 0)
    layers = [event.layer for event in events if isinstance(event, Compacted)]
    assert layers == ["auto"] * asked.summaries
    assert 3 <= asked.summaries <= 20
    used = outcome.usage
    assert (used.turns, used.input_tokens) == (300, 300 * 100 + asked.summaries * 1_000)
    assert used.cost_usd == pytest.approx(300 * 0.001 + asked.summaries * 0.01)
    assert not any(isinstance(event, TextDelta) for event in events)
    assert max(asked.sizes[100:]) <= max(asked.sizes[:100]) * 1.05
