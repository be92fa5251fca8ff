"""Runs the demo's task on an installation: submits examples/, waits, and checks that its patch applies.

Arguments: the address of the API, the file that holds a key.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import httpx

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
PROMPT = "One of this project's tests fails. Find the cause and mend it."


def packed() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.add(EXAMPLES, arcname=".", filter=lambda member: None if "__pycache__" in member.name else member)
    return buffer.getvalue()


def main(address: str, key_file: str) -> int:
    headers = {"Authorization": f"Bearer {Path(key_file).read_text().strip()}"}
    archive = packed()
    with httpx.Client(base_url=address, headers=headers, timeout=90, trust_env=False) as api:
        form = {
            "task": (None, json.dumps({"prompt": PROMPT, "model": "demo"}), "application/json"),
            "workspace": ("x.tgz", archive),
        }
        answer = api.post("/v1/tasks", files=form)
        if answer.status_code != 202:
            print(f"submit: {answer.status_code} {answer.text}", file=sys.stderr)
            return 1
        path = f"/v1/tasks/{answer.json()['id']}"
        task = api.get(path, params={"wait": 60}).json()
        print(f"{task['id']}: {task['state']} ({task['exit_reason']}), patch: {json.dumps(task['patch'])}")
        patch = api.get(f"{path}/patch")
    if task["state"] != "succeeded" or patch.status_code != 200:
        print(f"patch: {patch.status_code} {patch.text[:2000]}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        clean = shutil.copytree(EXAMPLES, Path(folder) / "clean", symlinks=True)
        subprocess.run(["git", "apply", "--check", "-"], input=patch.content, cwd=clean, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
