"""What an agent is told of the project in its box: notes and skills, from the double and from the real engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import docker
import pytest
from sandbox_kit import image_of, pack, pieces, spec

from worker.agent.project import Project, look_at
from worker.llm.messages import ToolCall
from worker.sandbox.base import Sandbox, SandboxProvider, ToolFailure
from worker.sandbox.local import LocalProvider
from worker.tools import skill
from worker.tools.base import Answer, Skill
from worker.tools.registry import Prepared, Toolbox, build_toolbox

Open = Callable[[dict[str, bytes | str]], Sandbox]


@contextmanager
def opener(provider: SandboxProvider, image: str) -> Iterator[Open]:
    boxes: list[Sandbox] = []

    def make(files: dict[str, bytes | str]) -> Sandbox:
        wanted = spec(image)
        boxes.append(provider.open(wanted))
        boxes[-1].claim(wanted.task, deadline_s=600)
        boxes[-1].load(pieces(pack(files)))
        return boxes[-1]

    try:
        yield make
    finally:
        for box in boxes:
            box.close()


@pytest.fixture(params=["local", pytest.param("docker", marks=pytest.mark.docker)])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    if request.param == "docker":
        engine, image = request.getfixturevalue("docker_provider"), request.getfixturevalue("sandbox_image")
        with opener(engine, image) as make:
            yield make
    else:
        with opener(LocalProvider(tmp_path), "local") as make:
            yield make


def skill_md(name: str, description: str, body: str = "Body.") -> bytes:
    return f"---\nname: {name}\ndescription: {description}\n---\n{body}\n".encode()


def toolbox_of(box: Sandbox, project: Project) -> Toolbox:
    return build_toolbox(box, env={}, command_timeout_s=30, store_artifact=lambda *_: None, skills=project.skills)


def load(toolbox: Toolbox, name: str) -> Answer:
    prepared = toolbox.prepare(ToolCall("c", "skill", json.dumps({"name": name})))
    assert isinstance(prepared, Prepared)
    steps = toolbox.execute(prepared)
    try:
        next(steps)
    except StopIteration as done:
        answer: Answer = done.value
        return answer
    raise AssertionError("a skill has nothing to tell")


def test_notes_and_skills_are_found(opened: Open) -> None:
    box = opened({
        "AGENTS.md": b"\xef\xbb\xbfUse tabs.\r\n",
        "CLAUDE.md": "AGENTS.md",  # a link to the other
        ".claude/skills/one/SKILL.md": skill_md("release", '"How to release."', "Bump it."),
        ".patchyard/skills/two/SKILL.md": skill_md("tests", "How we test.", "Run them."),
        ".claude/skills/three/SKILL.md": skill_md("tests", "Another of that name."),
        ".claude/skills/no-name/SKILL.md": b"---\ndescription: x\n---\n",
        ".claude/skills/no-matter/SKILL.md": b"Just text.",
        ".claude/skills/odd-name/SKILL.md": skill_md("</data>", "x"),
        ".claude/skills/gone/SKILL.md": "/etc/passwd",
        "docs/skills/four/SKILL.md": skill_md("elsewhere", "x"),
    })  # fmt: skip
    project = look_at(box)
    assert project == Project(
        notes=(("AGENTS.md", "Use tabs."),),
        skills=(
            Skill("tests", "How we test.", ".patchyard/skills/two/SKILL.md"),
            Skill("release", "How to release.", ".claude/skills/one/SKILL.md"),
        ),
    )
    toolbox = toolbox_of(box, project)
    answer = load(toolbox, "release")
    assert answer.text == (
        f"Skill release; its files are in .claude/skills/one\n<{toolbox.marker}>\nBump it.\n</{toolbox.marker}>"
    )
    assert load(toolbox, "nope").text == "Error: there is no such skill; the skills are tests, release"
    assert toolbox.skills_in_use == (answer.text,)


@pytest.mark.docker
def test_a_skill_of_the_image_comes_first_and_cannot_be_changed(
    engine: docker.APIClient, docker_provider: SandboxProvider, sandbox_image: str, deployment: str
) -> None:
    text = skill_md("house", "How we work.", "Of the image.").decode().replace("\n", "\\n")
    folder = "/opt/patchyard/skills/h"
    added = f"RUN mkdir {folder} && printf %b '{text}' > {folder}/SKILL.md"
    lines = (f"FROM {sandbox_image}", "USER root", added, "USER 10001:10001")
    with image_of(engine, f"{deployment}:skills", *lines) as image, opener(docker_provider, image) as make:
        box = make({".patchyard/skills/h/SKILL.md": skill_md("house", "Of the upload.")})
        project = look_at(box)
        assert project.skills == (Skill("house", "How we work.", "/opt/patchyard/skills/h/SKILL.md"),)
        for path in ("/opt/patchyard/skills/h/SKILL.md", "/opt/patchyard/skills/h/new", "/opt/patchyard/skills/new"):
            with pytest.raises(ToolFailure):
                box.write(path, b"x", overwrite=True)
        with pytest.raises(ToolFailure, match="outside the workspace"):
            box.read("/opt/patchyard/boot.py")
        assert "Of the image." in load(toolbox_of(box, project), "house").text


def test_an_empty_workspace_has_neither_and_no_skill_tool(opened: Open) -> None:
    box = opened({"a.txt": b"a"})
    project = look_at(box)
    assert project == Project()
    assert "skill" not in [schema.name for schema in toolbox_of(box, project).schemas]


def test_all_of_it_is_bounded(opened: Open) -> None:
    many = {f".claude/skills/s{at:02}/SKILL.md": skill_md(f"s{at}", "d" * 999, "b" * 90_000) for at in range(40)}
    box = opened({**many, "AGENTS.md": b"n" * 200_000})
    project = look_at(box)
    assert len(project.skills) == skill.MAX_SKILLS
    assert {len(each.description) for each in project.skills} == {skill.MAX_DESCRIPTION}
    ((_, note),) = project.notes
    assert len(note) <= 6_000
    assert "see AGENTS.md with read_file" in note
    toolbox = toolbox_of(box, project)
    assert len(load(toolbox, "s1").text) < skill.BODY_CHARS + 200
    for name in ("s2", "s3", "s2"):
        load(toolbox, name)
    assert [text.split(";")[0] for text in toolbox.skills_in_use] == ["Skill s3", "Skill s2"]
