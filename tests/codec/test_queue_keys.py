"""Keys of runs in their queues: the same with the code and without it."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from holdfast.codec import prepare_key_template, render_key

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=20)


@given(TEXT, TEXT, st.none() | TEXT, st.booleans())
def test_an_announced_template_gives_the_key_that_the_inputs_and_defaults_mean(
    literal: str, default: str, given_: str | None, is_left_out: bool
):
    template = f"{literal.replace('{', '{{').replace('}', '}}')}{{customer}}"
    announced = prepare_key_template(template, ["customer"], {"customer": default})
    inputs = json.dumps({} if is_left_out else {"customer": given_}).encode()
    meant = default if is_left_out else given_
    assert render_key(announced, inputs, "etl") == (f"{literal}{meant}" if meant else "")
