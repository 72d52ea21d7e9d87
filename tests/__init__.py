"""The tests."""

import pytest

pytest.register_assert_rewrite("tenax.testing.contract")
