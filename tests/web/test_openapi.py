"""What the OpenAPI page says is what the server does: schemathesis asks everything but the streams."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tenax.web.api import openapi
from tenax.web.app import endpoints
from tests.support.served import Page
from tests.web.conftest import BOTH

NEVER = {"/api/events", "/api/tour/plug", "/api/devices"}
"""A stream has no end, the plug has one too many, and without its device the test would be signed out."""
CHECKS = [
    not_a_server_error,
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
]

schema: Any = schemathesis.openapi.from_dict(
    openapi(endpoints()), config=SchemathesisConfig()
)


@pytest.fixture(scope="module")
def served(page: Page) -> Page:
    return page


@BOTH
@schema.exclude(path=list(NEVER)).parametrize()  # type: ignore[untyped-decorator]
@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
def test_every_answer_is_as_described(case: Any, served: Page) -> None:
    """Whatever is sent, the answer has a status, a type and a shape that the page promises, and is never a surprise."""
    cookies = {each.name: each.value for each in served.http.cookies.jar}
    headers = {
        name: served.http.headers[name] for name in ("Tenax-Key", "Sec-Fetch-Site")
    }
    case.call_and_validate(
        base_url=served.url, cookies=cookies, headers=headers, checks=CHECKS, timeout=30
    )


def test_every_endpoint_is_described() -> None:
    """With a sentence, and with the errors that it can give."""
    described = openapi(endpoints())["paths"]
    for endpoint in endpoints():
        found = described[endpoint.path][endpoint.method.lower()]
        assert found["summary"].endswith(".")
        assert "401" in found["responses"]
