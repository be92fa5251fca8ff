"""The same job under all three protocols, over real HTTP and in real boxes: one tree, one patch."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from export_kit import Upload
from llm_provider import Answer, Provider, chunk, serving, stream

from service.blobs import DiskBlobs
from service.contracts import ExitReason, Limits
from service.events import Event, MessageDone, TextDelta, ToolFinished, ToolStarted
from worker.agent.budget import Budget
from worker.agent.context import Conversation
from worker.agent.loop import Outcome, run_agent
from worker.export import export
from worker.llm.client import open_model
from worker.llm.profiles import Profile
from worker.sandbox.base import BoxSpec, SandboxProvider
from worker.tools.registry import build_toolbox

if TYPE_CHECKING:
    from worker.sandbox.docker import DockerProvider

EXAMPLES = Path(__file__).parents[2] / "examples"
TESTS = "python3 -B -m unittest discover -s tests -t ."
OLD = "    return int(cents * (1 - percent / 100))\n"
NEW = "    return (cents * (100 - percent) + 50) // 100\n"
EDIT = {"path": "shop/discount.py", "old": OLD, "new": NEW}
SUMMARY = "Rounded half a cent up; all tests pass."

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("read_file", {"path": "shop/discount.py"}),
    ("search", {"pattern": "discounted"}),
    ("edit_file", EDIT),
    ("bash", {"command": TESTS}),
    ("done", {"summary": SUMMARY}),
]
XML = [
    'I look.\n<view path="shop/discount.py"/>',
    'I look.\n<tool name="search">{"pattern": "discounted"}</tool>',
    f'I look.\n<str_replace path="shop/discount.py">\n<old>\n{OLD}\n</old>\n<new>\n{NEW}\n</new>\n</str_replace>',
    f"I look.\n<bash>\n{TESTS}\n</bash>",
    f"I look.\n<done>{SUMMARY}",
]
FENCED = [
    "I look.\n```read-file\nshop/discount.py\n```",
    'I look.\n```tool-call\n{"name": "search", "arguments": {"pattern": "discounted"}}\n```',
    f"I look.\n```tool-call\n{json.dumps({'name': 'edit_file', 'arguments': EDIT})}\n```",
    f"I look.\n```bash-action\n{TESTS}\n```",
    f"I look.\n```exit\n{SUMMARY}\n```",
]


def in_pieces(text: str) -> Answer:
    return stream(*(chunk({"content": text[at : at + 7]}) for at in range(0, len(text), 7)), chunk(finish="stop"))


def native(name: str, arguments: dict[str, Any]) -> Answer:
    call = {"index": 0, "id": "k", "function": {"name": name, "arguments": json.dumps(arguments)}}
    return stream(chunk({"content": "I look."}), chunk({"tool_calls": [call]}), chunk(finish="tool_calls"))


ANSWERS = {
    "native": [native(name, arguments) for name, arguments in CALLS],
    "xml": [in_pieces(text) for text in XML],
    "fenced": [in_pieces(text) for text in FENCED],
}


def work(
    protocol: str, boxes: SandboxProvider, image: str, folder: Path
) -> tuple[list[Event], Outcome, bytes, str, Provider]:
    """The job on a copy of examples/: what was told, how it ended, the patch, its tree, and what was asked."""
    before = folder / "before"
    shutil.copytree(EXAMPLES, before, ignore=shutil.ignore_patterns("__pycache__"))
    upload, blobs = Upload.of(before), DiskBlobs(folder / "blobs")
    spec = BoxSpec(task="task_job", run=1, image=image, cpus=1, memory_mb=256, disk_mb=128, pids=128)
    box = boxes.open(spec)
    try:
        box.claim(spec.task, deadline_s=60)
        box.load(upload.parts())
        with serving(Provider(ANSWERS[protocol])) as provider:
            profile = Profile.model_validate(
                {"name": "p", "base_url": provider.url, "model": "m", "protocol": protocol}
            )
            with open_model(profile) as model:
                steps = run_agent(
                    model,
                    build_toolbox(box, env={}, command_timeout_s=60, store_artifact=lambda name, data: None),
                    Conversation.start("You work.", "Fix the failing test."),
                    Budget(Limits(), seconds_left=lambda: 60.0),
                    checkpoint=lambda: None,
                )
                events: list[Event] = []
                while True:
                    try:
                        events.append(next(steps))
                    except StopIteration as end:
                        outcome: Outcome = end.value
                        break
        info = export(box, boxes, spec, upload.manifest, upload.tar, blobs)
    finally:
        box.close()
    assert info.sha256 is not None
    with blobs.open(info.sha256) as blob:
        return events, outcome, blob.read(), info.model_dump_json(), provider


@pytest.mark.docker
def test_the_same_job_under_each_protocol_ends_in_the_same_patch(
    docker_provider: DockerProvider, sandbox_image: str, tmp_path: Path
) -> None:
    ran = {name: work(name, docker_provider, sandbox_image, tmp_path / name) for name in ANSWERS}
    _, _, patch, info, _ = ran["native"]
    assert f"-{OLD}+{NEW}".encode() in patch
    for name, (events, outcome, its_patch, its_info, provider) in ran.items():
        assert (outcome.exit_reason, outcome.summary) == (ExitReason.COMPLETED, SUMMARY)
        assert its_patch == patch
        assert its_info == info
        started = [(event.tool, event.arguments) for event in events if isinstance(event, ToolStarted)]
        assert started == CALLS
        finished = [event for event in events if isinstance(event, ToolFinished)]
        assert [event.summary for event in finished if not event.ok] == []
        assert "[exit 0]" in finished[3].summary
        assert [event.text for event in events if isinstance(event, MessageDone)] == ["I look."] * 5
        assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "I look." * 5
        assert len(provider.requests) == 5
        assert ("tools" in provider.requests[0]) == (name == "native")

    for name, said in (("xml", XML), ("fenced", FENCED)):
        messages = ran[name][-1].requests[-1]["messages"]
        assert [message["role"] for message in messages] == ["system", "user", *["assistant", "user"] * 4]
        assert [message["content"] for message in messages[2::2]] == [
            text.replace("\n", "\n\n", 1) for text in said[:4]
        ]
        assert messages[3]["content"].startswith("[result of read_file]\nshop/discount.py\n")
