"""Generated requests against the whole API: no 500, and every answer is one that the OpenAPI document declares."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from api_kit import ADMIN, Api, serving
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)


@pytest.fixture(scope="module")
def api(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    folder: Path = tmp_path_factory.mktemp("schema")
    with serving(redis_url, folder) as running:
        yield running


CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]


def finished_task(api: Api) -> str:
    """A task with all there is to download, so that generated requests meet more than 404."""
    api.submit()
    lease = api.claim()
    blob = api.blobs.put([b"line\n"])
    api.store.add_artifact(lease, "a.log", blob.sha256, blob.size)
    return api.finish(lease, patch=b"a patch\n").id


def judge(strategy: Any, path: dict[str, str]) -> None:
    """Sends generated cases of one operation and checks each answer against the document."""

    @settings(
        max_examples=15,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy)
    def send(case: Any) -> None:
        case.path_parameters.update({name: path[name] for name in case.path_parameters if name in path})
        case.call_and_validate(headers={"Authorization": f"Bearer {ADMIN}"}, checks=CHECKS, timeout=10)

    send()


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_every_answer_is_a_declared_one(api: Api, mode: GenerationMode) -> None:
    schema = schemathesis.openapi.from_url(f"{api.url}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) == 16
    existing = {"task_id": finished_task(api), "name": "a.log"} if mode is GenerationMode.POSITIVE else {}
    for operation in operations:
        if mode is GenerationMode.NEGATIVE and not (operation.body or operation.query or operation.path_parameters):
            continue
        judge(operation.as_strategy(generation_mode=mode), existing)
